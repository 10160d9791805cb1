package postgres

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/test/postgrestest"
)

// TestPlansOfHotStatements checks, on a database with dead history, that statements find their rows by an index.
func TestPlansOfHotStatements(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	engine, err := Open(ctx, postgrestest.Schema(t), Options{})
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
	// Ten revisions that change all keys, and one, the 12th, that changes a tenth of them.
	for i := range 11 {
		var ops []sqlstore.Op
		for j := range 3000 {
			if i < 10 || j%10 == 0 {
				ops = append(ops, sqlstore.Op{Put: &sqlstore.PutRequest{Key: fmt.Appendf(nil, "/%04d", j), Value: fmt.Append(nil, i)}})
			}
		}
		if _, err := store.Txn(ctx, &sqlstore.TxnRequest{Success: ops}); err != nil {
			t.Fatal(err)
		}
	}
	for _, statement := range []string{"ANALYZE keys", "ANALYZE revisions"} {
		if _, err := engine.pool.Exec(ctx, statement); err != nil {
			t.Fatal(err)
		}
	}
	start, end, everything, limit := []byte("/1"), []byte("/11"), []byte("0"), int64(50)
	for name, c := range map[string]struct {
		statement string
		args      []any
		uses      []string
	}{
		"point get":                 {selectKeys, []any{[][]byte{start, end}}, []string{"keys_pkey", "revisions_pkey"}},
		"list page":                 {rangeValues, []any{start, everything, limit}, []string{"keys_pkey", "revisions_pkey"}},
		"list page without end":     {rangeValuesFrom, []any{start, limit}, []string{"keys_pkey", "revisions_pkey"}},
		"keys only":                 {rangeKeys, []any{start, everything, limit}, []string{"keys_pkey"}},
		"count":                     {countKeys, []any{start, end}, []string{"keys_pkey"}},
		"list page at a revision":   {rangeValuesAt, []any{start, everything, 11, limit}, []string{"keys_pkey", "revisions_key", "revisions_pkey"}},
		"one key at a revision":     {rangeValuesAt, []any{[]byte("/1000"), []byte("/1000\x00"), 11, nil}, []string{"keys_pkey", "revisions_key", "revisions_pkey"}},
		"count at a revision":       {countKeysAt, []any{start, end, 11}, []string{"keys_pkey", "revisions_key"}},
		"events after a revision":   {selectEvents, []any{start, everything, 12, 12, limit}, []string{"revisions_pkey"}},
		"events without end":        {selectEventsFrom, []any{start, 12, 12, limit}, []string{"revisions_pkey"}},
		"keys of a lease":           {selectLeaseKeys, []any{7}, []string{"keys_lease"}},
		"end of a compaction slice": {selectSliceEnd, []any{2, 11, limit}, []string{"revisions_pkey"}},
	} {
		t.Run(name, func(t *testing.T) {
			rows, err := engine.pool.Query(ctx, "EXPLAIN "+c.statement, c.args...)
			if err != nil {
				t.Fatal(err)
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			plan := strings.Join(lines, "\n")
			for _, index := range c.uses {
				if !strings.Contains(plan, index) {
					t.Errorf("the plan does not use %s:\n%s", index, plan)
				}
			}
			if strings.Contains(plan, "Seq Scan") {
				t.Errorf("the plan reads a whole table:\n%s", plan)
			}
		})
	}
}
