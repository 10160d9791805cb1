package sqlite_test

import (
	"fmt"
	"testing"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// Compaction gives the space of dead history back to the file system, all but what the next writes will need.
func TestCompactionReturnsSpace(t *testing.T) {
	t.Parallel()
	store, err := sqlstore.Open(t.Context(), fresh(t)(t), sqlstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	size := func() int64 {
		total, _, err := store.Size(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return total
	}
	const keys, versions, valueBytes = 100, 5, 100_000
	var revision sqlstore.Revision
	for v := range versions {
		for i := range keys {
			res, err := store.Txn(t.Context(), &sqlstore.TxnRequest{Success: []sqlstore.Op{{Put: &sqlstore.PutRequest{
				Key: fmt.Appendf(nil, "k%d", i), Value: make([]byte, valueBytes+v),
			}}}})
			if err != nil {
				t.Fatal(err)
			}
			revision = res.Revision
		}
	}
	before := size()
	if before < keys*versions*valueBytes {
		t.Fatalf("the database has %d bytes before compaction: less than was written", before)
	}
	if _, err := store.CompactPhysically(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	const kept = 9 << 20 // 8 MiB, and a slice
	if after := size(); after > keys*valueBytes*11/10+kept {
		t.Errorf("the database had %d bytes and has %d after compaction; what lives needs %d", before, after, keys*valueBytes)
	}
	res, err := store.Range(t.Context(), &sqlstore.RangeRequest{KeyRange: sqlstore.KeyRange{Key: []byte("k"), End: []byte("l")}})
	if err != nil || len(res.KVs) != keys || len(res.KVs[0].Value) != valueBytes+versions-1 {
		t.Errorf("after compaction the range has %d keys (%v)", len(res.KVs), err)
	}
}
