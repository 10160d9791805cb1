package sqlite

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// countingEngine says how often it was asked to count.
type countingEngine struct {
	*Engine
	counted int
}

func (e *countingEngine) Range(ctx context.Context, q sqlstore.RangeQuery) (sqlstore.RangeRows, error) {
	if q.Count {
		e.counted++
	}
	return e.Engine.Range(ctx, q)
}

// TestALargeListIsCountedOnce reads a list in pages as the API server does: all at the revision of the first page.
func TestALargeListIsCountedOnce(t *testing.T) {
	inner, err := Open(t.Context(), filepath.Join(t.TempDir(), "kubase.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	engine := &countingEngine{Engine: inner}
	store, err := sqlstore.Open(t.Context(), engine, sqlstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	const keys, limit = 95, 10
	ops := make([]sqlstore.Op, keys)
	for i := range ops {
		ops[i].Put = &sqlstore.PutRequest{Key: fmt.Appendf(nil, "/%02d", i)}
	}
	if _, err := store.Txn(t.Context(), &sqlstore.TxnRequest{Success: ops}); err != nil {
		t.Fatal(err)
	}
	for list := range 2 * 300 { // more lists than are remembered
		r := sqlstore.RangeRequest{KeyRange: sqlstore.KeyRange{Key: []byte("/"), End: []byte("0")}, Limit: limit}
		engine.counted = 0
		for read := 0; read < keys; {
			res, err := store.Range(t.Context(), &r)
			if err != nil {
				t.Fatal(err)
			}
			if want := int64(keys - read); res.Count != want {
				t.Fatalf("list %d: counted %d after %d keys, want %d", list, res.Count, read, want)
			}
			read += len(res.KVs)
			r.Key = append(res.KVs[len(res.KVs)-1].Key, 0)
			r.Revision = res.Revision
		}
		if engine.counted != 1 {
			t.Fatalf("list %d: counted %d times", list, engine.counted)
		}
		// The next list is at another revision, with other remainders.
		if _, err := store.Txn(t.Context(), &sqlstore.TxnRequest{Success: []sqlstore.Op{{Put: &sqlstore.PutRequest{Key: []byte("other")}}}}); err != nil {
			t.Fatal(err)
		}
	}
}
