package sqlite_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kubase/kubase/migrations"
	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/pkg/sqlstore/sqlite"
	"github.com/kubase/kubase/pkg/sqlstore/storetest"
)

// raw runs statements on a database that no engine has open.
func raw(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func openEngine(t *testing.T, path string) sqlstore.Engine {
	t.Helper()
	engine, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

func closeEngine(t *testing.T, engine sqlstore.Engine) {
	t.Helper()
	if err := engine.Close(); err != nil {
		t.Fatal(err)
	}
}

// filled makes a closed database with some keys.
func filled(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubase.db")
	store, err := sqlstore.Open(t.Context(), openEngine(t, path), sqlstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		put(t, store, fmt.Sprint(i%40), strings.Repeat("v", 500))
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func put(t *testing.T, s *sqlstore.Store, key, value string) {
	t.Helper()
	if err := tryPut(t, s, key, value); err != nil {
		t.Fatal(err)
	}
}

func tryPut(t *testing.T, s *sqlstore.Store, key, value string) error {
	_, err := s.Txn(t.Context(), &sqlstore.TxnRequest{
		Success: []sqlstore.Op{{Put: &sqlstore.PutRequest{Key: []byte(key), Value: []byte(value)}}},
	})
	return err
}

// refused checks that a database cannot be opened and that people get one line to read.
func refused(t *testing.T, path string, says ...string) error {
	t.Helper()
	engine, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err == nil {
		closeEngine(t, engine)
		t.Fatal("the database was opened")
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("the error %q does not say %q", err, s)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("the error has several lines: %q", err)
	}
	return err
}

func TestFilesAreForTheirOwnerOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubase.db")
	store, err := sqlstore.Open(t.Context(), openEngine(t, path), sqlstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	put(t, store, "a", "1")
	for _, suffix := range []string{"", "-wal", "-shm", "-lock"} {
		info, err := os.Stat(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o600 {
			t.Errorf("%s has mode %v", info.Name(), info.Mode())
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path + "-wal"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a clean end leaves a WAL: %v", err)
	}
}

// A file that a copy or a restored backup left open to others is for its owner again.
func TestWidePermissionsAreMended(t *testing.T) {
	path := filled(t)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	closeEngine(t, openEngine(t, path))
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file has mode %v (%v)", info.Mode(), err)
	}
}

// Another name of the file is not another lock.
func TestLinksAreNoWayAroundTheLock(t *testing.T) {
	path := filled(t)
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	engine := openEngine(t, path)
	refused(t, link, path, "in use")
	closeEngine(t, engine)
	closeEngine(t, openEngine(t, link))
	if err := os.Link(path, filepath.Join(filepath.Dir(path), "other.db")); err != nil {
		t.Fatal(err)
	}
	refused(t, path, path, "hard links")
}

func TestDirectoryIsRefused(t *testing.T) {
	path := t.TempDir()
	refused(t, path, path, "is a directory")
}

// Close waits for those who read: a connection that is closed under a statement is memory that is gone.
func TestCloseWhileItIsRead(t *testing.T) {
	engine := openEngine(t, filled(t))
	var readers sync.WaitGroup
	begun := make(chan struct{}, 8)
	for range cap(begun) {
		readers.Go(func() {
			err := engine.Check(t.Context())
			begun <- struct{}{}
			for err == nil {
				err = engine.Check(t.Context())
			}
			if !errors.Is(err, sqlstore.ErrClosed) {
				t.Errorf("a read ends with %v", err)
			}
		})
	}
	for range cap(begun) {
		<-begun
	}
	closeEngine(t, engine)
	readers.Wait()
	if err := engine.PutAlarm(t.Context(), sqlstore.Alarm{Member: 1, Kind: sqlstore.AlarmNoSpace}); !errors.Is(err, sqlstore.ErrClosed) {
		t.Errorf("a write after the end: %v", err)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	path := filled(t)
	raw(t, path, `INSERT INTO schema_migrations (version_id, is_applied) VALUES (9999, 1)`)
	err := refused(t, path, "schema version 9999")
	var newer *migrations.NewerSchemaError
	if !errors.As(err, &newer) || newer.Found != 9999 {
		t.Errorf("the error is %v", err)
	}
}

func TestDamageIsFound(t *testing.T) {
	path := filled(t)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := len(data) / 4096 / 2 * 4096
	for i := range 512 {
		data[page+i] ^= 0xa5
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, path, path, "damaged", "backup")
}

func TestFileThatIsNoDatabaseIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubase.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("no database\n", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, path, path, "damaged", "not a database")
}

func TestLargeRevisions(t *testing.T) {
	for _, revision := range []sqlstore.Revision{1<<31 - 2, 1 << 32, 1 << 42} {
		storetest.RunFrom(t, revision, func(t *testing.T) storetest.Opener {
			path := filepath.Join(t.TempDir(), "kubase.db")
			open := func(t *testing.T) sqlstore.Engine { return openEngine(t, path) }
			closeEngine(t, open(t))
			raw(t, path, fmt.Sprintf(`UPDATE meta SET revision_floor = %d, compact_revision = %[1]d`, revision),
				fmt.Sprintf(`UPDATE compaction SET reached = %d`, revision))
			return open
		})
	}
}
