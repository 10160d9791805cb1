package sqlite

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// known lists which of the ids are remembered.
func (v *versions) known(ids ...int64) []int64 {
	missing := v.get(ids, make([]sqlstore.Row, len(ids)))
	return slices.DeleteFunc(slices.Clone(ids), func(place int64) bool { return slices.Contains(missing, slices.Index(ids, place)) })
}

func TestVersionsAreBounded(t *testing.T) {
	row := func(revision sqlstore.Revision) *sqlstore.Row {
		return &sqlstore.Row{KeyValue: sqlstore.KeyValue{Key: fmt.Append(nil, revision), Value: make([]byte, 999), ModRevision: revision}}
	}
	v := newVersions(4 * (1000 + versionOverhead))
	for revision := range sqlstore.Revision(4) {
		v.add(row(revision))
		v.add(row(revision))
	}
	v.known(id(0, 0)) // so that 1 is the one that was not used for longest
	v.add(row(4))
	ids := []int64{id(0, 0), id(1, 0), id(2, 0), id(3, 0), id(4, 0)}
	if got := v.known(ids...); !slices.Equal(got, []int64{ids[0], ids[2], ids[3], ids[4]}) || v.bytes != v.maxBytes {
		t.Fatalf("known are %d in %d bytes of %d", got, v.bytes, v.maxBytes)
	}
	v.addAll([]sqlstore.Row{*row(5), *row(6)})
	v.addAll([]sqlstore.Row{*row(7), *row(8), *row(9)}) // more than half of all: a long list must not drive out the rest
	if got := v.known(id(5, 0), id(6, 0), id(7, 0), id(8, 0), id(9, 0)); !slices.Equal(got, []int64{id(5, 0), id(6, 0)}) {
		t.Fatalf("known are %d", got)
	}
}

// TestUncommittedVersionsAreNotRemembered writes two versions to one place in history, the first of which is rolled back after it was
// read.
func TestUncommittedVersionsAreNotRemembered(t *testing.T) {
	ctx := t.Context()
	engine, err := Open(ctx, filepath.Join(t.TempDir(), "kubase.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	key := []byte("key")
	point := sqlstore.RangeQuery{Start: key, End: []byte("key\x00")}
	for _, value := range []string{"rolled back", "committed"} {
		tx, _, err := engine.Begin(ctx, [][]byte{key})
		if err != nil {
			t.Fatal(err)
		}
		kv := sqlstore.KeyValue{Key: key, Value: []byte(value), ModRevision: 2, CreateRevision: 2, Version: 1}
		changes := []sqlstore.Change{{Row: sqlstore.Row{KeyValue: kv}}}
		if err := tx.Write(ctx, changes); err != nil {
			t.Fatal(err)
		}
		rows, err := tx.Range(ctx, point)
		if err != nil || len(rows.Rows) != 1 || string(rows.Rows[0].Value) != value {
			t.Fatalf("the transaction reads %v, %v, want %q", rows, err, value)
		}
		if value == "rolled back" {
			tx.Rollback()
			if rows, err := engine.Range(ctx, point); err != nil || len(rows.Rows) != 0 {
				t.Fatalf("after the rollback: %v, %v", rows, err)
			}
			continue
		}
		meta := tx.Meta()
		meta.CurrentRevision = 2
		if err := tx.Commit(ctx, nil, meta); err != nil {
			t.Fatal(err)
		}
		if rows, err := engine.Range(ctx, point); err != nil || len(rows.Rows) != 1 || string(rows.Rows[0].Value) != value {
			t.Fatalf("after the commit: %v, %v, want %q", rows, err, value)
		}
	}
	if got := engine.versions.known(id(2, 0)); len(got) != 1 {
		t.Error("what was committed is not remembered")
	}
}
