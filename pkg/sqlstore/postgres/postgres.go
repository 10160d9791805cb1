// Package postgres keeps the store in a Postgres database, which several servers may share: every statement of the Postgres engine
// is here.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/kubase/kubase/migrations"
	"github.com/kubase/kubase/pkg/sqlstore"
)

// Options tunes the engine. The zero value is good.
type Options struct {
	// ConnectTimeout is how long Open waits for a server that does not answer. Default 30 s.
	ConnectTimeout time.Duration
	// WriteTimeout bounds how long a transaction of ours may hold the write lock, whatever becomes of us. Default 10 s.
	WriteTimeout time.Duration
	// Logger gets what has no caller to go to. Default slog.Default().
	Logger *slog.Logger
}

// Engine is the Postgres engine.
type Engine struct {
	log          *slog.Logger
	pool         *pgxpool.Pool
	writeTimeout time.Duration
	server       uuid.UUID // this process
	batches      atomic.Int64
	schema       int64 // the version this program knows
}

const (
	// Unless the DSN has pool_max_conns. One is for the committer; reads are short and share the rest.
	defaultPoolSize = 10
	connectRetry    = time.Second
)

// Open connects, waiting for a server that is not there yet, and migrates the schema. dsn is a URL or a list of settings as libpq
// takes them, with pgxpool's pool_ settings and pgx's default_query_exec_mode (exec, for a transaction pooler) besides.
func Open(ctx context.Context, dsn string, o Options) (*Engine, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.ConnectTimeout == 0 {
		o.ConnectTimeout = 30 * time.Second
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = 10 * time.Second
	}
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("the Postgres DSN cannot be used: %w", oneLine(err))
	}
	if !strings.Contains(dsn, "pool_max_conns") {
		config.MaxConns = defaultPoolSize
	}
	config.ConnConfig.RuntimeParams["application_name"] = "kubase"
	schema, err := migrations.Latest(migrations.Postgres)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, oneLine(err)
	}
	e := &Engine{log: o.Logger, pool: pool, writeTimeout: o.WriteTimeout, server: uuid.New(), schema: schema}
	if err := e.start(ctx, config, o.ConnectTimeout); err != nil {
		pool.Close()
		return nil, err
	}
	return e, nil
}

func (e *Engine) start(ctx context.Context, config *pgxpool.Config, timeout time.Duration) error {
	if err := e.waitForServer(ctx, config, timeout); err != nil {
		return err
	}
	db := stdlib.OpenDBFromPool(e.pool)
	if err := errors.Join(migrations.Up(ctx, migrations.Postgres, db), db.Close()); err != nil {
		return fmt.Errorf("database %q in Postgres: %w", config.ConnConfig.Database, oneLine(err))
	}
	if _, err := e.pool.Exec(ctx, deleteOldServers); err != nil {
		return wrap(err)
	}
	return nil
}

// waitForServer pings until the server answers, refuses for good, or the time is up. It logs once that it waits.
func (e *Engine) waitForServer(ctx context.Context, config *pgxpool.Config, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	address := fmt.Sprintf("%s:%d", config.ConnConfig.Host, config.ConnConfig.Port)
	waiting := false
	for {
		err := e.pool.Ping(ctx)
		switch {
		case err == nil:
			if waiting {
				e.log.Info("Postgres answers", "address", address)
			}
			return nil
		case refused(err):
			return fmt.Errorf("access refused by Postgres at %s: %w", address, oneLine(reason(err)))
		case !waiting && ctx.Err() == nil:
			e.log.Warn("waiting for Postgres", "address", address, "timeout", timeout.String(), "error", oneLine(reason(err)))
			waiting = true
		}
		timer := time.NewTimer(connectRetry)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: Postgres at %s did not answer within %s: %w", sqlstore.ErrUnavailable, address, timeout, oneLine(reason(err)))
		}
	}
}

// reason is the innermost error of a failed attempt to connect: what is around it repeats the address.
func reason(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return fmt.Errorf("%s (SQLSTATE %s)", pg.Message, pg.Code)
	}
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		return connect.Unwrap()
	}
	return err
}

// oneLine puts a message of several lines on one.
func oneLine(err error) error {
	text := err.Error()
	if !strings.Contains(text, "\n") {
		return err
	}
	return errors.New(strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' }), "; "))
}

// Name implements sqlstore.Engine.
func (e *Engine) Name() string { return "postgres" }

// Shared implements sqlstore.Engine.
func (e *Engine) Shared() bool { return true }

// Listen implements sqlstore.Engine, on a connection of its own that is not from the pool: it is held for good.
func (e *Engine) Listen(ctx context.Context, hint func()) error {
	conn, err := pgx.ConnectConfig(ctx, e.pool.Config().ConnConfig)
	if err != nil {
		return wrap(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), e.writeTimeout)
		defer cancel()
		_ = conn.Close(ctx) // nothing is lost with it
	}()
	if _, err := conn.Exec(ctx, listen); err != nil {
		return wrap(err)
	}
	for {
		hint() // after LISTEN too: something may have been committed before it
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return wrap(err)
		}
	}
}

// Check implements sqlstore.Engine.
func (e *Engine) Check(ctx context.Context) error {
	var found int64
	if err := e.pool.QueryRow(ctx, selectSchemaVersion).Scan(&found); err != nil {
		return wrap(err)
	}
	if found > e.schema {
		return &migrations.NewerSchemaError{Found: found, Known: e.schema}
	}
	return nil
}

// Close implements sqlstore.Engine.
func (e *Engine) Close() error {
	e.pool.Close()
	return nil
}
