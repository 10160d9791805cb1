package datastore

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/pkg/sqlstore/postgres"
	"github.com/kubase/kubase/pkg/sqlstore/sqlite"
)

// openStore opens the store that the options name, and says where that is. This is the one place that knows the engines.
func openStore(ctx context.Context, o Options, log *slog.Logger) (*sqlstore.Store, location, error) {
	l, err := o.location()
	if err != nil {
		return nil, l, err
	}
	var engine sqlstore.Engine
	switch l.backend {
	case backendSQLite:
		engine, err = sqlite.Open(ctx, l.path, sqlite.Options{AllowNetworkFilesystem: l.allowNetworkFilesystem, Logger: log})
	case backendPostgres:
		engine, err = postgres.Open(ctx, l.dsn, postgres.Options{ConnectTimeout: o.ConnectTimeout, Logger: log})
	}
	if err != nil {
		return nil, l, fmt.Errorf("cannot open the datastore: %w", err)
	}
	store, err := sqlstore.Open(ctx, engine, sqlstore.Options{Logger: log})
	if err != nil {
		return nil, l, fmt.Errorf("cannot read the datastore: %w", err)
	}
	return store, l, nil
}
