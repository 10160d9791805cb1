// Package migrations brings a database to the schema that this program knows. Migrations only go forward, each in a transaction of
// its own, with the same numbers for both engines.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

//go:embed sqlite/*.sql postgres/*.sql
var files embed.FS

// Dialect is a kind of database.
type Dialect string

// The dialects there are migrations for; the names of the directories.
const (
	SQLite   Dialect = "sqlite"
	Postgres Dialect = "postgres"
)

const versionTable = "schema_migrations"

// How often, and how many times, a program that starts while another one migrates asks for the lock: it hardly waits longer than it
// has to, and gives up after five minutes.
const (
	lockRetry = 200 * time.Millisecond
	lockTries = 1500
)

// NewerSchemaError says that the database was migrated by a newer program.
type NewerSchemaError struct {
	Found, Known int64
}

func (e *NewerSchemaError) Error() string {
	return fmt.Sprintf("the database has schema version %d, this program knows versions up to %d: run the kubase that wrote it, or a newer one", e.Found, e.Known)
}

// Up applies what is missing. On Postgres, programs that start together take turns. It returns a *NewerSchemaError, and changes
// nothing, if the schema is newer than this program.
func Up(ctx context.Context, dialect Dialect, db *sql.DB) error {
	p, err := provider(dialect, db)
	if err != nil {
		return err
	}
	if err := checkVersion(ctx, p); err != nil {
		return err
	}
	pending, err := p.HasPending(ctx)
	if err != nil {
		return fmt.Errorf("reading the schema version: %w", err)
	}
	if !pending {
		return nil
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrating the schema: %w", err)
	}
	return nil
}

// Latest is the schema version that this program knows.
func Latest(dialect Dialect) (int64, error) {
	names, err := fs.Glob(files, string(dialect)+"/*.sql")
	if err != nil {
		return 0, err
	}
	return goose.NumericComponent(names[len(names)-1])
}

func provider(dialect Dialect, db *sql.DB) (*goose.Provider, error) {
	fsys, err := fs.Sub(files, string(dialect))
	if err != nil {
		return nil, err
	}
	kind := goose.DialectSQLite3
	options := []goose.ProviderOption{goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger())}
	if dialect == Postgres {
		kind = goose.DialectPostgres
		// A lock in a table, not in a session, works through a transaction pooler too.
		locker, err := lock.NewPostgresTableLocker(
			lock.WithTableLogger(slog.New(slog.DiscardHandler)),
			lock.WithTableLockTimeout(lockRetry, lockTries),
		)
		if err != nil {
			return nil, err
		}
		options = append(options, goose.WithLocker(locker))
	}
	store, err := database.NewStore(kind, versionTable)
	if err != nil {
		return nil, err
	}
	return goose.NewProvider("", db, fsys, append(options, goose.WithStore(store))...)
}

func checkVersion(ctx context.Context, p *goose.Provider) error {
	found, err := p.GetDBVersion(ctx)
	if err != nil {
		return fmt.Errorf("reading the schema version: %w", err)
	}
	sources := p.ListSources()
	if known := sources[len(sources)-1].Version; found > known {
		return &NewerSchemaError{Found: found, Known: known}
	}
	return nil
}
