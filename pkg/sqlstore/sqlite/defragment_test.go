package sqlite_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// Defragment leaves no free page in the file, which is cut, while others write.
func TestDefragment(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "kubase.db")
	engine := openEngine(t, path)
	store, err := sqlstore.Open(t.Context(), engine, sqlstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		put(t, store, fmt.Sprintf("k/%d", i), strings.Repeat("v", 100_000))
	}
	res, err := store.Txn(t.Context(), &sqlstore.TxnRequest{Success: []sqlstore.Op{{Delete: &sqlstore.DeleteRequest{
		KeyRange: sqlstore.KeyRange{Key: []byte("k/"), End: []byte("k0")},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	put(t, store, "a", "1")
	if _, err := store.CompactPhysically(t.Context(), res.Revision+1); err != nil {
		t.Fatal(err)
	}
	before, inUse, err := store.Size(t.Context())
	if err != nil || before-inUse < 4<<20 {
		t.Fatalf("before: %d bytes, %d in use (%v)", before, inUse, err)
	}
	done := make(chan error, 1)
	go func() { done <- store.Defragment(t.Context()) }()
	writes := 0
	for running := true; running; writes++ {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			running = false
		default:
			put(t, store, "a", "1")
		}
	}
	// Once more with nobody writing, whose WAL would be there too.
	if err := store.Defragment(t.Context()); err != nil {
		t.Fatal(err)
	}
	total, inUse, err := store.Size(t.Context())
	if err != nil || total != inUse || total > 1<<20 {
		t.Errorf("after: %d bytes, %d in use (%v), with %d writes meanwhile", total, inUse, err, writes)
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() != total {
		t.Errorf("the file has %d bytes, the database %d (%v)", info.Size(), total, err)
	}
	if err := sqlstore.Verify(t.Context(), engine); err != nil {
		t.Error(err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}
