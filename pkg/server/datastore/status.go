package datastore

import (
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/kubase/kubase/migrations"
	"github.com/kubase/kubase/pkg/sqlstore"
)

// Status is what only this side of the etcd API knows of the datastore.
type Status struct {
	Backend         string
	Endpoint        string // without user and password
	SchemaVersion   int64
	CompactRevision int64
	LastCompaction  sqlstore.Compaction
	Watchers        int
	WatcherLag      int64 // revisions
	WALBytes        int64 // of SQLite
	FreeBytes       int64 // in the file system of SQLite's file; -1: not known
}

// Describe asks the database what it is and how far it has deleted history.
func (d *Datastore) Describe(ctx context.Context) (sqlstore.Description, error) {
	return d.store.Describe(ctx)
}

// Status tells how the datastore is. It asks no database.
func (d *Datastore) Status() Status {
	store := d.store.Status()
	status := Status{
		Backend: d.location.backend, Endpoint: d.location.endpoint(),
		CompactRevision: int64(store.CompactRevision), LastCompaction: store.LastCompaction,
		Watchers: store.Watchers, WatcherLag: store.WatcherLag, FreeBytes: -1,
	}
	// The store opened, so the database has the newest schema. The migrations are part of this program.
	status.SchemaVersion, _ = migrations.Latest(migrations.Dialect(status.Backend))
	if status.Backend == backendSQLite {
		if info, err := os.Stat(d.location.path + "-wal"); err == nil {
			status.WALBytes = info.Size()
		}
		var fs unix.Statfs_t
		if err := unix.Statfs(filepath.Dir(d.location.path), &fs); err == nil {
			status.FreeBytes = int64(fs.Bavail) * int64(fs.Bsize)
		}
	}
	return status
}

// endpoint is where the data is, as far as everybody may know.
func (l location) endpoint() string {
	if l.backend == backendSQLite {
		path, err := filepath.Abs(l.path)
		if err != nil {
			path = l.path
		}
		return "sqlite://" + path
	}
	config, err := pgconn.ParseConfig(l.dsn)
	if err != nil {
		return "" // it could be opened, so this does not happen
	}
	u := url.URL{Scheme: "postgres", Host: net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))), Path: "/" + config.Database}
	return u.String()
}
