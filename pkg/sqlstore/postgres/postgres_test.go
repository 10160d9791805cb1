package postgres_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/pkg/sqlstore/postgres"
	"github.com/kubase/kubase/pkg/sqlstore/storetest"
	"github.com/kubase/kubase/test/postgrestest"
)

func TestMain(m *testing.M) { os.Exit(postgrestest.Run(m)) }

// fresh makes an empty schema.
func fresh(t *testing.T) storetest.Opener { return opener(postgrestest.Schema(t)) }

func opener(dsn string) storetest.Opener {
	return func(t *testing.T) sqlstore.Engine {
		t.Helper()
		engine, err := postgres.Open(t.Context(), dsn, postgres.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return engine
	}
}

func TestStore(t *testing.T) { storetest.Run(t, fresh) }

func TestRandomHistory(t *testing.T) { storetest.RunRandom(t, fresh) }

// What the documentation recommends behind a transaction pooler: no prepared statements.
func TestRandomHistoryInExecMode(t *testing.T) {
	storetest.RunRandom(t, func(t *testing.T) storetest.Opener {
		return opener(postgrestest.Schema(t) + "&default_query_exec_mode=exec")
	})
}

func TestLargeRevisions(t *testing.T) {
	for _, revision := range []sqlstore.Revision{1<<31 - 2, 1 << 32, 1 << 60} {
		storetest.RunFrom(t, revision, func(t *testing.T) storetest.Opener {
			dsn := postgrestest.Schema(t)
			if err := opener(dsn)(t).Close(); err != nil {
				t.Fatal(err)
			}
			exec(t, dsn, `UPDATE meta SET current_revision = $1, compact_revision = $1`, revision)
			exec(t, dsn, `UPDATE compaction SET reached = $1`, revision)
			return opener(dsn)
		})
	}
}

// exec runs a statement on a connection of its own.
func exec(t *testing.T, dsn, statement string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestLongKeys puts a key that no index of Postgres takes, among others that are written with it.
func TestLongKeys(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	store := openStore(t, postgrestest.Schema(t), quick)
	key := make([]byte, 3000)
	if _, err := rand.NewChaCha8([32]byte{}).Read(key); err != nil { // cannot be compressed
		t.Fatal(err)
	}
	var writing sync.WaitGroup
	for i := range 40 {
		writing.Go(func() {
			if i == 20 {
				if _, err := create(ctx, store, string(key)); !errors.Is(err, sqlstore.ErrKeyTooLong) {
					t.Errorf("got %v, want %v", err, sqlstore.ErrKeyTooLong)
				}
				return
			}
			if _, err := create(ctx, store, fmt.Sprint(i)); err != nil {
				t.Error(err)
			}
		})
	}
	writing.Wait()
	mustCreate(ctx, t, store, string(key[:2500]))
	res, err := store.Range(ctx, &sqlstore.RangeRequest{KeyRange: everything})
	if err != nil || res.Count != 40 || res.Revision != 41 {
		t.Errorf("%d keys at revision %d (%v), want 40 at 41", res.Count, res.Revision, err)
	}
}
