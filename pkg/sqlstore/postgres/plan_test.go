package postgres

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/test/postgrestest"
)

// TestPlansOfHotStatements checks that statements find their rows by an index, with plans made for an empty database and for one with dead
// history.
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
	t.Run("empty", func(t *testing.T) { checkPlans(t, engine) })
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
	engine.pool.Reset() // for connections without plans
	t.Run("bloated", func(t *testing.T) { checkPlans(t, engine) })
}

func checkPlans(t *testing.T, engine *Engine) {
	ctx := t.Context()
	conn, err := engine.pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for name, c := range map[string]struct {
		statement string
		uses      []string
	}{
		"point get":                      {selectPoint, []string{"keys_pkey", "revisions_pkey"}},
		"keys of a batch":                {selectKeys, []string{"keys_pkey", "revisions_pkey"}},
		"list page":                      {rangeValues, []string{"keys_pkey", "revisions_pkey"}},
		"list page without end":          {rangeValuesFrom, []string{"keys_pkey", "revisions_pkey"}},
		"keys only":                      {rangeKeys, []string{"keys_pkey"}},
		"keys only without end":          {rangeKeysFrom, []string{"keys_pkey"}},
		"count":                          {countKeys, []string{"keys_pkey"}},
		"count without end":              {countKeysFrom, []string{"keys_pkey"}},
		"list page at a revision":        {rangeValuesAt, []string{"keys_pkey", "revisions_key", "revisions_pkey"}},
		"list without end at a revision": {rangeValuesAtFrom, []string{"keys_pkey", "revisions_key", "revisions_pkey"}},
		"keys only at a revision":        {rangeKeysAt, []string{"keys_pkey", "revisions_key", "revisions_pkey"}},
		"count at a revision":            {countKeysAt, []string{"keys_pkey", "revisions_key"}},
		"events":                         {selectEvents, []string{"revisions_pkey"}},
		"events without end":             {selectEventsFrom, []string{"revisions_pkey"}},
		"kept by a snapshot":             {selectKept, []string{"revisions_pkey", "revisions_key"}},
		"versions of a snapshot":         {selectVersions, []string{"revisions_pkey"}},
		"deletion of keys":               {deleteKeys, []string{"keys_pkey"}},
		"keys of a lease":                {selectLeaseKeys, []string{"keys_lease"}},
		"end of a compaction slice":      {selectSliceEnd, []string{"revisions_pkey"}},
		"deletion of replaced rows":      {deleteReplaced, []string{"revisions_pkey"}},
		"deletion of tombstones":         {deleteTombstones, []string{"revisions_pkey"}},
	} {
		t.Run(name, func(t *testing.T) {
			prepared, err := conn.Conn().Prepare(ctx, name, c.statement)
			if err != nil {
				t.Fatal(err)
			}
			arguments := strings.TrimSuffix(strings.Repeat("NULL, ", len(prepared.ParamOIDs)), ", ")
			rows, err := conn.Query(ctx, fmt.Sprintf("EXPLAIN EXECUTE %q (%s)", name, arguments), pgx.QueryExecModeSimpleProtocol)
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
			for _, whole := range []string{"Seq Scan on keys", "Seq Scan on revisions", "Hash", "Merge Join"} {
				if strings.Contains(plan, whole) {
					t.Errorf("the plan may read a whole table:\n%s", plan)
				}
			}
			if strings.Contains(plan, "revisions") && !strings.Contains(plan, "Index Cond") {
				t.Errorf("the plan reads all of history:\n%s", plan)
			}
		})
	}
}
