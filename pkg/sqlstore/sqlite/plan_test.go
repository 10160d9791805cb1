package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// TestPlansOfHotStatements checks, on a database with dead history, that statements find their rows by an index and in order.
func TestPlansOfHotStatements(t *testing.T) {
	ctx := t.Context()
	engine, err := Open(ctx, filepath.Join(t.TempDir(), "kubase.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := sqlstore.Open(ctx, engine, sqlstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i := range 10 {
		ops := make([]sqlstore.Op, 500)
		for j := range ops {
			ops[j].Put = &sqlstore.PutRequest{Key: fmt.Appendf(nil, "/%04d", j), Value: fmt.Append(nil, i)}
		}
		if _, err := store.Txn(ctx, &sqlstore.TxnRequest{Success: ops}); err != nil {
			t.Fatal(err)
		}
	}
	start, end, limit := []byte("/"), []byte("0"), int64(100)
	for name, c := range map[string]struct {
		statement string
		args      []driver.Value
		uses      []string
	}{
		"point get":                 {selectPoint, []driver.Value{start}, []string{"SEARCH k USING PRIMARY KEY (key=?)"}},
		"version":                   {selectVersion, []driver.Value{firstID(5)}, []string{"SEARCH revisions USING INTEGER PRIMARY KEY"}},
		"list page":                 {rangeVersions, []driver.Value{start, end, limit}, []string{"SEARCH keys USING PRIMARY KEY (key>? AND key<?)"}},
		"list page without end":     {rangeVersionsFrom, []driver.Value{start, limit}, []string{"SEARCH keys USING PRIMARY KEY (key>?)"}},
		"keys only":                 {rangeKeys, []driver.Value{start, end, limit}, []string{"SEARCH keys USING PRIMARY KEY (key>? AND key<?)"}},
		"count":                     {countKeys, []driver.Value{start, end}, []string{"SEARCH keys USING PRIMARY KEY (key>? AND key<?)"}},
		"list page at a revision":   {rangeVersionsAt, []driver.Value{start, end, firstID(5), limit}, []string{"SEARCH keys USING PRIMARY KEY (key>? AND key<?)", "SEARCH revisions USING COVERING INDEX revisions_key (key>? AND key<?)"}},
		"count at a revision":       {countKeysAt, []driver.Value{start, end, firstID(5)}, []string{"SEARCH revisions USING COVERING INDEX revisions_key (key>? AND key<?)"}},
		"events after a revision":   {selectEvents, []driver.Value{start, end, firstID(5), firstID(9), limit}, []string{"SEARCH n USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)", "SEARCH p USING INTEGER PRIMARY KEY"}},
		"events without end":        {selectEventsFrom, []driver.Value{start, firstID(5), firstID(9), limit}, []string{"SEARCH n USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"}},
		"keys of a lease":           {selectLeaseKeys, []driver.Value{int64(7)}, []string{"SEARCH keys USING COVERING INDEX keys_lease (lease=?)"}},
		"end of a compaction slice": {selectSliceEnd, []driver.Value{firstID(2), firstID(5), limit}, []string{"SEARCH revisions USING INTEGER PRIMARY KEY"}},
		"deletion of replaced rows": {deleteReplaced, []driver.Value{firstID(2), firstID(5), firstID(5)}, []string{"SEARCH revisions USING INTEGER PRIMARY KEY"}},
	} {
		t.Run(name, func(t *testing.T) {
			var plan []string
			if err := engine.read(ctx, func(conn *conn) error {
				return conn.query(context.Background(), "EXPLAIN QUERY PLAN "+c.statement, func(row []driver.Value) error {
					plan = append(plan, row[3].(string))
					return nil
				}, c.args...)
			}); err != nil {
				t.Fatal(err)
			}
			text := strings.Join(plan, "\n")
			for _, use := range c.uses {
				if !strings.Contains(text, use) {
					t.Errorf("the plan lacks %q:\n%s", use, text)
				}
			}
			if strings.Contains(text, "SCAN revisions") || strings.Contains(text, "SCAN n") || strings.Contains(text, "SCAN k") ||
				strings.Contains(text, "USE TEMP B-TREE FOR ORDER BY") {
				t.Errorf("the plan reads a whole table or sorts:\n%s", text)
			}
		})
	}
}
