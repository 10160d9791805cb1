package postgres_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/test/postgrestest"
)

// Defragment gives what is free at the end of the tables back, and the rest to later writes.
func TestDefragment(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	store := openStore(t, postgrestest.Database(t), quick) // nobody else's snapshots
	size := func() int64 {
		t.Helper()
		total, _, err := store.Size(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return total
	}
	value := make([]byte, 100_000)
	random := rand.NewChaCha8([32]byte{}) // cannot be compressed
	fill := func() {
		t.Helper()
		for i := range 60 {
			if _, err := random.Read(value); err != nil {
				t.Fatal(err)
			}
			if _, err := store.Txn(ctx, &sqlstore.TxnRequest{Success: []sqlstore.Op{{Put: &sqlstore.PutRequest{
				Key: fmt.Appendf(nil, "k/%d", i), Value: value,
			}}}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	var full int64
	empty := func() {
		t.Helper()
		r := sqlstore.KeyRange{Key: []byte("k/"), End: []byte("k0")}
		res, err := store.Txn(ctx, &sqlstore.TxnRequest{Success: []sqlstore.Op{{Delete: &sqlstore.DeleteRequest{KeyRange: r}}}})
		if err == nil {
			_, err = store.CompactPhysically(ctx, res.Revision)
		}
		if err != nil {
			t.Fatal(err)
		}
		// Postgres leaves the end of a table alone when somebody looks at it just then, or when an older snapshot still does.
		for now := size(); now > full/2; now = size() {
			if err := store.Defragment(ctx); err != nil {
				t.Fatalf("the database had %d bytes and has %d with nothing in it: %v", full, now, err)
			}
		}
	}
	fill()
	full = size()
	if full < 60*100_000 {
		t.Fatalf("with 6 MB of values the database has %d bytes", full)
	}
	for range 3 {
		empty()
		fill()
	}
	if now := size(); now > full*3/2 {
		t.Errorf("the database had %d bytes and has %d with the same in it", full, now)
	}
}
