package datastore

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/kubase/kubase/migrations"
	"github.com/kubase/kubase/pkg/sqlstore"
)

// statusTimeout bounds how long the database may take to say how it is.
const statusTimeout = 2 * time.Second

// Status is how the datastore is: what its metrics, the API and readiness tell.
type Status struct {
	sqlstore.Status

	Backend             string
	Endpoint            string // without user and password
	SchemaVersion       int64
	WALBytes            int64 // of SQLite
	FilesystemFreeBytes int64 // where SQLite's file is; -1: not known

	Err      error                // why the database does not answer
	Database sqlstore.Description // empty if it does not
}

// Compacting says whether the database has history below the compact revision that is to be deleted.
func (s *Status) Compacting() bool { return s.Database.Reached < s.Database.Meta.CompactRevision }

// FreePagesBytes is what a vacuum of SQLite's file would give back; 0 of Postgres, which does not say.
func (s *Status) FreePagesBytes() int64 { return s.Database.SizeBytes - s.Database.InUseBytes }

// String is the status in a line, without anything that says where the data is.
func (s *Status) String() string {
	line := fmt.Sprintf("%s, revision %d, compacted at %d", s.Backend, s.Revision, s.CompactRevision)
	if s.Compacting() {
		line += fmt.Sprintf(" and deleted up to %d", s.Database.Reached)
	}
	if s.Keys >= 0 {
		line += fmt.Sprintf(", %d keys", s.Keys)
	}
	if s.Err == nil {
		line += fmt.Sprintf(", %d bytes", s.Database.SizeBytes)
	}
	return line + fmt.Sprintf(", %d watchers, the slowest %d revisions behind", s.Watchers, s.WatcherLag)
}

// Status tells how the datastore is. It asks the database once, for at most statusTimeout, however many callers there are meanwhile.
func (d *Datastore) Status() Status {
	s := Status{Backend: d.location.backend, Endpoint: d.location.endpoint(), FilesystemFreeBytes: -1}
	s.Database, s.Err = d.describe()
	s.Status = d.store.Status() // after the answer, so that the revision is not behind it
	// The store opened, so the database has the newest schema. The migrations are part of this program.
	s.SchemaVersion, _ = migrations.Latest(migrations.Dialect(s.Backend))
	if s.Backend == backendSQLite {
		if info, err := os.Stat(d.location.path + "-wal"); err == nil {
			s.WALBytes = info.Size()
		}
		var fs unix.Statfs_t
		if err := unix.Statfs(filepath.Dir(d.location.path), &fs); err == nil {
			s.FilesystemFreeBytes = int64(fs.Bavail) * int64(fs.Bsize)
		}
	}
	return s
}

// question is put to the database by one caller; others wait for the answer with him.
type question struct {
	answered chan struct{} // closed when there is one
	answer   sqlstore.Description
	err      error
}

func (d *Datastore) describe() (sqlstore.Description, error) {
	q := &question{answered: make(chan struct{})}
	for !d.asking.CompareAndSwap(nil, q) {
		if other := d.asking.Load(); other != nil {
			<-other.answered
			return other.answer, other.err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	q.answer, q.err = d.store.Describe(ctx)
	d.asking.Store(nil)
	close(q.answered)
	return q.answer, q.err
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
