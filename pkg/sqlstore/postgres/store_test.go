package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/pkg/sqlstore/postgres"
)

// quick makes background work try again soon.
var quick = sqlstore.Options{RetryInterval: 20 * time.Millisecond, PollInterval: 50 * time.Millisecond}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// openStore opens a store that is verified and closed when the test ends.
func openStore(t *testing.T, dsn string, options sqlstore.Options) *sqlstore.Store {
	t.Helper()
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	engine, err := postgres.Open(t.Context(), dsn, postgres.Options{Logger: options.Logger})
	if err != nil {
		t.Fatal(err)
	}
	store, err := sqlstore.Open(t.Context(), engine, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			if err := sqlstore.Verify(context.Background(), engine); err != nil {
				t.Error(err)
			}
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

// create puts a key that must not be there. It answers errKeyExists if it is.
func create(ctx context.Context, s *sqlstore.Store, key string) (sqlstore.Revision, error) {
	absent := sqlstore.Compare{KeyRange: sqlstore.KeyRange{Key: []byte(key)}, Target: sqlstore.CompareMod}
	res, err := s.Txn(ctx, &sqlstore.TxnRequest{
		Compare: []sqlstore.Compare{absent},
		Success: []sqlstore.Op{{Put: &sqlstore.PutRequest{Key: []byte(key)}}},
	})
	if err != nil {
		return 0, err
	}
	if !res.Succeeded {
		return 0, errKeyExists
	}
	return res.Revision, nil
}

var errKeyExists = errors.New("the key exists")

func mustCreate(ctx context.Context, t *testing.T, s *sqlstore.Store, key string) sqlstore.Revision {
	t.Helper()
	revision, err := create(ctx, s, key)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return revision
}

var everything = sqlstore.KeyRange{Key: []byte{0}, End: []byte{0}}

func watchAll(t *testing.T, s *sqlstore.Store, from sqlstore.Revision) *sqlstore.WatchStream {
	stream := s.NewWatchStream()
	t.Cleanup(stream.Close)
	stream.Watch(sqlstore.WatchRequest{KeyRange: everything, From: from})
	return stream
}

// log takes the events of a stream's one watcher up to a revision: one event a revision, each once and in order (I8).
func log(ctx context.Context, s *sqlstore.WatchStream, from, last sqlstore.Revision) (keys []string, err error) {
	for next := from; next <= last; {
		b, err := s.Next(ctx)
		if err != nil {
			return keys, fmt.Errorf("waiting for revision %d: %w", next, err)
		}
		for _, e := range b.Events {
			if e.KV.ModRevision != next {
				return keys, fmt.Errorf("I8: revision %d came, not %d", e.KV.ModRevision, next)
			}
			keys = append(keys, string(e.KV.Key))
			next++
		}
	}
	return keys, nil
}
