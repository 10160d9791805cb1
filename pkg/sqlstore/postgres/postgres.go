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
	// Unless the DSN has pool_max_conns, the pool may grow to a tenth of the server's max_connections, within these bounds. One is
	// for the committer; reads are short and share the rest.
	minPoolSize = 4
	maxPoolSize = 20

	connectRetry = time.Second
	// How long a connection that was idle may take to show that it is alive before another one is made. Without it, each connection
	// that a network lost silently costs its next user all of his time.
	pingTimeout = 2 * time.Second
	// How long making a connection may take, unless the DSN has connect_timeout. pgx waits two minutes, and attempts that hang use the
	// pool up.
	connectTimeout = 5 * time.Second
	// How long a connection that is given up may take to say goodbye.
	closeTimeout = time.Second
	// How long the connection that listens may be silent before it is tried.
	listenCheck = 10 * time.Second
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
	if err != nil || misplacedPassword(config.ConnConfig) {
		return nil, errBadDSN // what the parser says quotes the DSN, and with it what may be a password in the wrong place
	}
	config.ConnConfig.RuntimeParams["application_name"] = "kubase"
	if !strings.Contains(dsn, "connect_timeout") {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	schema, err := migrations.Latest(migrations.Postgres)
	if err != nil {
		return nil, err
	}
	e := &Engine{log: o.Logger, writeTimeout: o.WriteTimeout, server: uuid.New(), schema: schema}
	maxConnections, err := e.waitForServer(ctx, config.ConnConfig, o.ConnectTimeout)
	if err != nil {
		return nil, err
	}
	if !strings.Contains(dsn, "pool_max_conns") {
		config.MaxConns = int32(min(max(maxConnections/10, minPoolSize), maxPoolSize))
	}
	config.PingTimeout = pingTimeout
	if config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement { // else it may be a pooler's connection, and others' too
		config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			ctx, cancel := context.WithTimeout(ctx, connectTimeout) // pgxpool gives it all the time there is, and a place in the pool
			defer cancel()
			_, err := conn.Exec(ctx, fixPlans)
			return err
		}
	}
	if e.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, oneLine(err)
	}
	if err := e.migrate(ctx); err != nil {
		e.pool.Close()
		return nil, err
	}
	return e, nil
}

var errBadDSN = errors.New("the Postgres DSN cannot be used: it must be postgres://user:password@host:port/database?parameters with valid parameters, and any of @ : / ? # % in the user or password written as %40 %3A %2F %3F %23 %25")

// misplacedPassword says whether a password with an @ in it has been taken for a part of the host.
func misplacedPassword(config *pgx.ConnConfig) bool {
	misplaced := strings.Contains(config.Host, "@")
	for _, fallback := range config.Fallbacks {
		misplaced = misplaced || strings.Contains(fallback.Host, "@")
	}
	return misplaced
}

func (e *Engine) migrate(ctx context.Context) error {
	db := stdlib.OpenDBFromPool(e.pool)
	if err := errors.Join(migrations.Up(ctx, migrations.Postgres, db), db.Close()); err != nil {
		return fmt.Errorf("database %q in Postgres: %w", e.pool.Config().ConnConfig.Database, oneLine(err))
	}
	_, err := e.pool.Exec(ctx, deleteOldServers)
	return wrap(err)
}

// waitForServer tries until the server answers, refuses for good, or the time is up. It logs once that it waits. It returns how many
// connections the server takes.
func (e *Engine) waitForServer(ctx context.Context, config *pgx.ConnConfig, timeout time.Duration) (maxConnections int, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	address := fmt.Sprintf("%s:%d", config.Host, config.Port)
	waiting := false
	for {
		maxConnections, err := tryServer(ctx, config)
		switch {
		case err == nil:
			if waiting {
				e.log.Info("Postgres answers", "address", address)
			}
			return maxConnections, nil
		case untrusted(err):
			return 0, fmt.Errorf("cannot trust Postgres at %s: %w", address, oneLine(reason(err)))
		case refused(err):
			return 0, fmt.Errorf("access refused by Postgres at %s: %w", address, oneLine(reason(err)))
		case !waiting && ctx.Err() == nil:
			e.log.Warn("waiting for Postgres", "address", address, "timeout", timeout.String(), "error", oneLine(reason(err)))
			waiting = true
		}
		timer := time.NewTimer(connectRetry)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return 0, fmt.Errorf("%w: Postgres at %s did not answer within %s: %w", sqlstore.ErrUnavailable, address, timeout, oneLine(reason(err)))
		}
	}
}

func tryServer(ctx context.Context, config *pgx.ConnConfig) (maxConnections int, err error) {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return 0, err
	}
	err = conn.QueryRow(ctx, selectMaxConnections).Scan(&maxConnections)
	return maxConnections, errors.Join(err, conn.Close(ctx))
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
func (e *Engine) Listen(ctx context.Context, hint func(notified bool)) error {
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
	hint(false)
	for {
		if err := e.waitForNotification(ctx, conn); err != nil {
			return wrap(err)
		}
		hint(true)
	}
}

// waitForNotification waits, and now and then makes sure that there is still a server at the other end: a connection that was cut off
// without a word is silent too.
func (e *Engine) waitForNotification(ctx context.Context, conn *pgx.Conn) error {
	for {
		waiting, cancel := context.WithTimeout(ctx, listenCheck)
		_, err := conn.WaitForNotification(waiting)
		cancel()
		if err == nil || ctx.Err() != nil || waiting.Err() == nil {
			return err
		}
		checking, cancel := context.WithTimeout(ctx, e.writeTimeout)
		err = conn.Ping(checking)
		cancel()
		if err != nil {
			return err
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

// Close implements sqlstore.Engine. It does not wait for the server's goodbye on connections that a network lost silently: the pool
// would for 15 s.
func (e *Engine) Close() error {
	closed := make(chan struct{})
	go func() {
		e.pool.Close()
		close(closed)
	}()
	timeout := time.NewTimer(closeTimeout)
	defer timeout.Stop()
	select {
	case <-closed:
	case <-timeout.C:
	}
	return nil
}
