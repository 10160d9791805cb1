// Package sqlite keeps the store in one SQLite file: every statement and pragma of the SQLite engine is here.
package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubase/kubase/migrations"
)

// Options tunes the engine. The zero value is good.
type Options struct {
	// AllowNetworkFilesystem opens a file that does not lie on a local disk, where locks and fsync may not be what SQLite
	// takes them for.
	AllowNetworkFilesystem bool
	// CacheBytes bounds the versions of keys kept in memory. Default 32 MiB.
	CacheBytes int
	// Logger gets what has no caller to go to. Default slog.Default().
	Logger *slog.Logger
}

// Engine is the SQLite engine: one writer connection and some readers, in WAL mode.
type Engine struct {
	log      *slog.Logger
	lock     *os.File
	writer   chan *conn    // holds the one writer when it is free
	readers  chan *conn    // holds the readers that are free
	opened   int           // connections: the writer and readers
	closed   chan struct{} // closed by Close: no connection is given out any more
	versions *versions
}

// Every commit is on disk before it is acknowledged (I9).
var writerPragmas = []string{
	"PRAGMA busy_timeout = 5000",
	"PRAGMA journal_mode = WAL",
	"PRAGMA synchronous = FULL",
	"PRAGMA journal_size_limit = 67108864",
	"PRAGMA cache_size = -16384",
}

var readerPragmas = []string{
	"PRAGMA busy_timeout = 5000",
	"PRAGMA query_only = ON",
	"PRAGMA cache_size = -2048",
}

// alwaysChecked is the size in bytes up to which a file is checked at each start, not only after an unclean end: that takes a fraction
// of a second.
const alwaysChecked = 64 << 20

// realPath is the one name by which a database is locked: the file behind symbolic links. A file with several names is refused; their
// locks and logs would be different ones.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, os.ErrNotExist) {
		return path, nil
	}
	if err != nil {
		return "", fmt.Errorf("opening the database: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(real, &st); err != nil {
		return "", fmt.Errorf("opening the database: %w", err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return "", fmt.Errorf("opening the database: %s is a directory", real)
	}
	if st.Nlink > 1 {
		return "", fmt.Errorf("database %s has %d names (hard links), through which several processes could open it: remove the others", real, st.Nlink)
	}
	return real, nil
}

// Open opens or creates the database file, takes it for this process alone and migrates it.
func Open(ctx context.Context, path string, o Options) (*Engine, error) {
	if o.CacheBytes == 0 {
		o.CacheBytes = 32 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	path, err := realPath(path)
	if err != nil {
		return nil, err
	}
	if !o.AllowNetworkFilesystem {
		if err := refuseNetworkFilesystem(filepath.Dir(path)); err != nil {
			return nil, err
		}
	}
	lock, err := lockFile(path + "-lock")
	if err != nil {
		return nil, err
	}
	e := &Engine{
		log: o.Logger, lock: lock, versions: newVersions(o.CacheBytes), closed: make(chan struct{}),
		writer: make(chan *conn, 1), readers: make(chan *conn, max(4, 2*runtime.GOMAXPROCS(0))),
	}
	if err := e.open(ctx, path); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Engine) open(ctx context.Context, path string) error {
	// The file is created here, for its owner only; the WAL and its index take over its permissions.
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("opening the database: %w", err)
	}
	info, err := file.Stat()
	if err = errors.Join(err, file.Chmod(0o600), file.Close()); err != nil {
		return fmt.Errorf("opening the database: %w", err)
	}
	_, err = os.Stat(path + "-wal")
	unclean := err == nil // a clean end removes the WAL
	dsn := (&url.URL{Scheme: "file", Path: path}).String()
	if err := migrate(ctx, dsn); err != nil {
		return fmt.Errorf("database %s: %w", path, err)
	}
	w, err := open(dsn, writerPragmas)
	if err != nil {
		return fmt.Errorf("opening the database: %w", err)
	}
	w.versions, w.writes = e.versions, true
	e.writer <- w
	e.opened++
	if unclean || info.Size() <= alwaysChecked {
		if err := w.quickCheck(ctx); err != nil {
			return fmt.Errorf("database %s: %w", path, err)
		}
	}
	for range cap(e.readers) {
		r, err := open(dsn, readerPragmas)
		if err != nil {
			return fmt.Errorf("opening the database: %w", err)
		}
		r.versions = e.versions
		e.readers <- r
		e.opened++
	}
	return nil
}

func migrate(ctx context.Context, dsn string) error {
	// auto_vacuum can only be chosen before the first table is made.
	db, err := sql.Open("sqlite3", dsn+"?_auto_vacuum=incremental&_journal_mode=WAL&_synchronous=FULL")
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	return wrap(errors.Join(migrations.Up(ctx, migrations.SQLite, db), db.Close()))
}

// quickCheck looks for damage that a crash of the machine may have left.
func (c *conn) quickCheck(ctx context.Context) error {
	return c.query(ctx, "PRAGMA quick_check(1)", func(row []driver.Value) error {
		if text, _ := row[0].(string); text != "ok" {
			text = strings.ReplaceAll(text, "\n", " ")
			return fmt.Errorf("the file is damaged (%s), restore it from a backup", text)
		}
		return nil
	})
}

// Name implements sqlstore.Engine.
func (e *Engine) Name() string { return "sqlite" }

// Shared implements sqlstore.Engine: the lock file keeps other processes out.
func (e *Engine) Shared() bool { return false }

// Listen implements sqlstore.Engine: there is nobody to listen to.
func (e *Engine) Listen(ctx context.Context, _ func(bool)) error {
	<-ctx.Done()
	return ctx.Err()
}

// Close implements sqlstore.Engine. It waits for those who still use a connection. The last one to close, the writer, checkpoints the WAL
// and removes it.
func (e *Engine) Close() error {
	close(e.closed)
	var errs []error
	for range e.opened - 1 {
		errs = append(errs, (<-e.readers).close())
	}
	if e.opened > 0 {
		errs = append(errs, (<-e.writer).close())
	}
	return errors.Join(append(errs, e.lock.Close())...)
}
