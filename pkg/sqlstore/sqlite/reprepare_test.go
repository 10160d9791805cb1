package sqlite

import (
	"database/sql/driver"
	"path/filepath"
	"reflect"
	"testing"
)

// TestStatementsAreCompiledOnce runs every statement with parameters twice: SQLite must not compile it again for the second run, which
// costs several times as much as a point read.
func TestStatementsAreCompiledOnce(t *testing.T) {
	engine, err := Open(t.Context(), filepath.Join(t.TempDir(), "kubase.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	writer := <-engine.writer
	defer func() { engine.writer <- writer }()

	statements := map[string][]driver.Value{ // with the kind of each parameter: a text stands for bytes
		selectKey: {"key"}, selectVersion: {1}, selectPoint: {"key"}, deleteKey: {"key"},
		insertRevision: {1, "key", "value", 1, 1, 0, 0}, upsertKey: {"key", 1, 1, 1, 0}, updateMeta: {1, 1, 1},
		selectLease: {1}, upsertLease: {1, 1, 1}, deleteLease: {1}, selectLeaseKeys: {1},
		selectEvents: {"key", "key", 1, 2, 1}, selectEventsFrom: {"key", 1, 2, 1},
		selectSliceEnd: {1, 2, 1}, deleteReplaced: {1, 2, 2}, deleteTombstones: {1, 2}, updateReached: {1, 1, 1, 1},
		rangeVersions: {"key", "key", 1}, rangeVersionsFrom: {"key", 1}, rangeKeys: {"key", "key", 1}, rangeKeysFrom: {"key", 1},
		rangeVersionsAt: {"key", "key", 1, 1}, rangeVersionsAtFrom: {"key", 1, 1}, rangeKeysAt: {"key", "key", 1, 1}, rangeKeysAtFrom: {"key", 1, 1},
		countKeys: {"key", "key"}, countKeysFrom: {"key"}, countKeysAt: {"key", "key", 1}, countKeysAtFrom: {"key", 1},
	}
	for text, kinds := range statements {
		for run := range int64(3) {
			args := make([]driver.Value, len(kinds))
			for i, kind := range kinds {
				args[i] = run + int64(i) // another value each time, 0 and 1 among them
				if _, ok := kind.(string); ok {
					args[i] = []byte{byte('a' + run), byte(i)}
				}
			}
			if err := writer.query(t.Context(), text, func([]driver.Value) error { return nil }, args...); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
		}
		// The driver keeps what SQLite says of this, for its own use.
		count := reflect.ValueOf(writer.stmts[text].Stmt).Elem().FieldByName("repreps")
		if !count.IsValid() {
			t.Fatal("the driver no longer keeps the count in this field")
		}
		if count.Int() != 0 {
			t.Errorf("compiled %d times more:\n%s", count.Int(), text)
		}
	}
	for _, text := range append(rangeStatements[:], countStatements[:]...) {
		if _, ok := statements[text]; !ok {
			t.Errorf("not tested:\n%s", text)
		}
	}
}
