package sqlite_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/pkg/sqlstore/sqlite"
)

const benchKeys = 5000

func benchStore(b *testing.B) *sqlstore.Store {
	engine, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "kubase.db"), sqlite.Options{})
	if err != nil {
		b.Fatal(err)
	}
	store, err := sqlstore.Open(b.Context(), engine, sqlstore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = store.Close() })
	value := make([]byte, 1024)
	ops := make([]sqlstore.Op, 0, 100)
	for i := range benchKeys {
		ops = append(ops, sqlstore.Op{Put: &sqlstore.PutRequest{Key: benchKey(i), Value: value}})
		if len(ops) == cap(ops) {
			if _, err := store.Txn(b.Context(), &sqlstore.TxnRequest{Success: ops}); err != nil {
				b.Fatal(err)
			}
			ops = ops[:0]
		}
	}
	return store
}

func benchKey(i int) []byte { return fmt.Appendf(nil, "/registry/pods/ns%02d/pod-%06d", i%20, i) }

func BenchmarkGet(b *testing.B) {
	store := benchStore(b)
	var n atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			key := benchKey(int(n.Add(1)) % benchKeys)
			if _, err := store.Range(context.Background(), &sqlstore.RangeRequest{KeyRange: sqlstore.KeyRange{Key: key}, Limit: 1}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkListPage(b *testing.B) {
	store := benchStore(b)
	b.ReportAllocs()
	r := &sqlstore.RangeRequest{KeyRange: sqlstore.KeyRange{Key: []byte("/registry/pods/"), End: []byte("/registry/pods0")}, Limit: 500}
	for b.Loop() {
		if _, err := store.Range(context.Background(), r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUpdate(b *testing.B) {
	store := benchStore(b)
	value := make([]byte, 1024)
	var n atomic.Int64
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			put := sqlstore.Op{Put: &sqlstore.PutRequest{Key: benchKey(int(n.Add(1)) % benchKeys), Value: value}}
			if _, err := store.Txn(context.Background(), &sqlstore.TxnRequest{Success: []sqlstore.Op{put}}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
