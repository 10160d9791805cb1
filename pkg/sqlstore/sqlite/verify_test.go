package sqlite_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// damaged makes a database with a bit of everything, in which compaction has reached revision 6 of 9:
//
//	2 a=1   3 b=1   4 a=2   5 delete b   6 c=1   7 a=3, d=1 with lease 7   8 delete c   9 b=2
func damaged(t *testing.T, statements ...string) sqlstore.Engine {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubase.db")
	store, err := sqlstore.Open(t.Context(), openEngine(t, path), sqlstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.LeaseGrant(t.Context(), 7, 100); err != nil {
		t.Fatal(err)
	}
	remove := func(key string) sqlstore.Op {
		return sqlstore.Op{Delete: &sqlstore.DeleteRequest{KeyRange: sqlstore.KeyRange{Key: []byte(key)}}}
	}
	set := func(key, value string, lease sqlstore.LeaseID) sqlstore.Op {
		return sqlstore.Op{Put: &sqlstore.PutRequest{Key: []byte(key), Value: []byte(value), Lease: lease}}
	}
	for _, ops := range [][]sqlstore.Op{
		{set("a", "1", 0)}, {set("b", "1", 0)}, {set("a", "2", 0)}, {remove("b")}, {set("c", "1", 0)},
		{set("a", "3", 0), set("d", "1", 7)}, {remove("c")}, {set("b", "2", 0)},
	} {
		if _, err := store.Txn(t.Context(), &sqlstore.TxnRequest{Success: ops}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.CompactPhysically(t.Context(), 6); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	raw(t, path, statements...)
	engine := openEngine(t, path)
	t.Cleanup(func() { closeEngine(t, engine) })
	return engine
}

// TestVerifyFinds damages a good database in many ways.
func TestVerifyFinds(t *testing.T) {
	if err := sqlstore.Verify(t.Context(), damaged(t)); err != nil {
		t.Fatalf("the database that is damaged next: %v", err)
	}
	const (
		at    = "id >> 20 = "
		clone = "INSERT INTO revisions SELECT "
		rest  = "key, value, create_revision, version, lease, previous_id FROM revisions WHERE "
	)
	for name, c := range map[string]struct{ statement, says string }{
		"cluster id":             {"UPDATE meta SET cluster_id = 0", "the cluster id is 0"},
		"newest missing":         {"DELETE FROM revisions WHERE " + at + "9", "I2: no changes between revision 8 and the current one, 9"},
		"current above":          {"UPDATE meta SET revision_floor = 10", "I2: no changes between revision 9 and the current one, 10"},
		"compact above":          {"UPDATE meta SET compact_revision = 10", "compact revision 10"},
		"cursor above":           {"UPDATE compaction SET reached = 7", "I5: history is deleted up to revision 7"},
		"cursor far above":       {"UPDATE compaction SET reached = 7; UPDATE meta SET compact_revision = 7", "I5: history 7/0, key \"a\": the version it replaced is still there"},
		"revision missing":       {"DELETE FROM revisions WHERE " + at + "8", "I2: history 9/0, key \"b\": no changes between revision 7 and it"},
		"sub missing":            {"DELETE FROM revisions WHERE id = 7 << 20", "I3: history 7/1, key \"d\": is the first change"},
		"sub skipped":            {"UPDATE revisions SET id = id + 1 WHERE id = 7 << 20 | 1; UPDATE keys SET id = id + 1 WHERE key = x'64'", "I3: history 7/2, key \"d\": follows change 0"},
		"previous missing":       {"DELETE FROM revisions WHERE " + at + "4", "I5: history 7/0, key \"a\": the version it replaced is missing"},
		"previous of another":    {"UPDATE revisions SET previous_id = 6 << 20 WHERE id = 7 << 20", "I3: history 7/0, key \"a\": replaces revision 6/0, the key's last version is 4/0"},
		"previous forgotten":     {"UPDATE revisions SET previous_id = 0 WHERE id = 7 << 20", "I3: history 7/0, key \"a\": says that it replaced nothing"},
		"version":                {"UPDATE revisions SET version = 5 WHERE id = 7 << 20; UPDATE keys SET version = 5 WHERE key = x'61'", "I3: history 7/0, key \"a\": version 5"},
		"version of a new key":   {"UPDATE revisions SET version = 2 WHERE " + at + "6", "I3: history 6/0, key \"c\": a new key with version 2"},
		"version after a gap":    {"UPDATE revisions SET version = 1 WHERE " + at + "4", "I3: history 4/0, key \"a\": version 1, created at 2, does not follow"},
		"tombstone of nothing":   {"UPDATE revisions SET previous_id = 0 WHERE " + at + "8", "I3: history 8/0, key \"c\": a tombstone that replaced nothing"},
		"tombstone with a value": {"UPDATE revisions SET value = x'01' WHERE " + at + "8", "a tombstone holds more"},
		"tombstone kept":         {clone + "5 << 20, x'62', x'', 0, 0, 0, 3 << 20", "I5: history 5/0, key \"b\": a tombstone below revision 6"},
		"replaced kept":          {clone + "2 << 20, " + rest + at + "4; UPDATE revisions SET version = 1, previous_id = 0 WHERE id = 2 << 20", "I5: history 4/0, key \"a\": the version it replaced is still there"},
		"row of the empty store": {clone + "1 << 20, x'7a', x'', 1, 1, 0, 0", "I1: history 1/0"},
		"live key missing":       {"DELETE FROM keys WHERE key = x'61'", "2 keys are live, by history 3 are"},
		"dead key live":          {"INSERT INTO keys VALUES (x'63', 6 << 20, 6, 1, 0)", "key \"c\" is live, by history it is not"},
		"live key old":           {"UPDATE keys SET id = 4 << 20 WHERE key = x'61'", "key \"a\" differs"},
		"lease of a live key":    {"UPDATE keys SET lease = 8 WHERE key = x'61'", "key \"a\" is attached to lease 8"},
		"lease missing":          {"DELETE FROM leases", "key \"d\" is attached to lease 7, which does not exist"},
		"lease without TTL":      {"UPDATE leases SET ttl = 0", "lease 7 has TTL 0"},
	} {
		t.Run(name, func(t *testing.T) {
			err := sqlstore.Verify(t.Context(), damaged(t, c.statement))
			if err == nil {
				t.Fatal("nothing was found")
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("the error does not say %q:\n%v", c.says, err)
			}
		})
	}
}

// TestVerifyStops does not list all there is to say about a database that is beyond help.
func TestVerifyStops(t *testing.T) {
	path := filled(t)
	raw(t, path, "DELETE FROM keys; UPDATE revisions SET version = version + 7")
	engine := openEngine(t, path)
	defer closeEngine(t, engine)
	err := sqlstore.Verify(t.Context(), engine)
	if err == nil {
		t.Fatal("nothing was found")
	}
	if n := strings.Count(err.Error(), "\n") + 1; n > 21 {
		t.Errorf("%d problems are listed", n)
	}
}
