package storetest

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/kubase/kubase/pkg/sqlstore"
)

var snapshotCases = []testCase{
	{name: "HistoryIsAsIfCompacted", run: func(f *fixture) {
		f.grant(7, 100)
		f.put("a", "1")                                            // 2
		f.put("b", "1")                                            // 3
		f.txn(ops(put("a", "2"), put("c", "1"), del(single("b")))) // 4
		f.put("d", "1")                                            // 5
		f.txn(ops(del(single("d")), putLeased("e", "1", 7)))       // 6
		f.put("a", "3")                                            // 7
		f.delete(single("c"))                                      // 8
		all := []string{
			"a=1 m2 c2 v1/0", "b=1 m3 c3 v1/0", "a=2 m4 c2 v2/0", "c=1 m4 c4 v1/1", "b= m4 c0 v0/2", "d=1 m5 c5 v1/0",
			"d= m6 c0 v0/0", "e=1 m6 c6 v1 l7/1", "a=3 m7 c2 v3/0", "c= m8 c0 v0/0",
		}
		same(f, "never compacted", f.history(sqlstore.HistoryQuery{Through: 8}), all)
		same(f, "through 4", f.history(sqlstore.HistoryQuery{Through: 4}), all[:5])
		for i := range 2 { // before and after the rows are deleted
			when := fmt.Sprintf("%d, ", i)
			same(f, when+"live at the compact revision", f.history(sqlstore.HistoryQuery{Compact: 6, LiveAt: 6, Through: 8}), []string{
				"a=2 m4 c2 v2/0", "c=1 m4 c4 v1/1", "d= m6 c0 v0/0", "e=1 m6 c6 v1 l7/1", "a=3 m7 c2 v3/0", "c= m8 c0 v0/0",
			})
			same(f, when+"live later", f.history(sqlstore.HistoryQuery{Compact: 6, LiveAt: 7, Through: 7}), []string{
				"c=1 m4 c4 v1/1", "d= m6 c0 v0/0", "e=1 m6 c6 v1 l7/1", "a=3 m7 c2 v3/0",
			})
			same(f, when+"live in the end", f.history(sqlstore.HistoryQuery{Compact: 6, LiveAt: 8, Through: 8}), []string{
				"d= m6 c0 v0/0", "e=1 m6 c6 v1 l7/1", "a=3 m7 c2 v3/0", "c= m8 c0 v0/0",
			})
			f.compactOnce(6)
		}
	}},
	{name: "Stands_I4", run: func(f *fixture) {
		f.grant(7, 100)
		f.put("a", "1")
		f.must(f.Snapshot(f.ctx, func(s sqlstore.Snapshot) error {
			f.put("a", "2")
			f.put("b", "1")
			f.grant(8, 100)
			equal(f, "current revision", s.Meta().CurrentRevision, 2)
			leases, err := s.Leases(f.ctx)
			f.must(err)
			if len(leases) != 1 || leases[0].ID != 7 || leases[0].TTL != 100 {
				f.Errorf("leases are %v", leases)
			}
			rows, err := s.Range(f.ctx, sqlstore.RangeQuery{Start: []byte("a"), Count: true})
			f.must(err)
			if len(rows.Rows) != 1 || rows.Count != 1 || string(rows.Rows[0].Value) != "1" {
				f.Errorf("keys are %v", rows)
			}
			var n int
			f.must(s.History(f.ctx, sqlstore.HistoryQuery{Through: 100}, func(*sqlstore.Row) error { n++; return nil }))
			equal(f, "versions", n, 1)
			return nil
		}))
		equal(f, "current revision", f.current(), 4)
	}},
	{name: "ErrorsOfTheReaderAreItsOwn", run: func(f *fixture) {
		f.put("a", "1")
		// One that looks like the network's.
		own := error(syscall.ENOSPC)
		err := f.Snapshot(f.ctx, func(sqlstore.Snapshot) error { return own })
		f.fails(err, own)
		if errors.Is(err, sqlstore.ErrUnavailable) {
			f.Errorf("%v is taken for the database's", err)
		}
		err = f.Snapshot(f.ctx, func(s sqlstore.Snapshot) error {
			return s.History(f.ctx, sqlstore.HistoryQuery{Through: 2}, func(*sqlstore.Row) error { return own })
		})
		f.fails(err, own)
		if errors.Is(err, sqlstore.ErrUnavailable) {
			f.Errorf("%v is taken for the database's", err)
		}
		f.put("a", "2")
	}},
}

// history describes what a snapshot shows of history.
func (f *fixture) history(q sqlstore.HistoryQuery) []string {
	f.Helper()
	var rows []string
	f.must(f.Snapshot(f.ctx, func(s sqlstore.Snapshot) error {
		return s.History(f.ctx, q, func(row *sqlstore.Row) error {
			rows = append(rows, fmt.Sprintf("%s/%d", kvString(&row.KeyValue), row.Sub))
			return nil
		})
	}))
	return rows
}

// compactOnce is compact, but for a revision that is compacted already.
func (f *fixture) compactOnce(revision sqlstore.Revision) {
	f.Helper()
	if _, err := f.CompactPhysically(f.ctx, revision); !errors.Is(err, sqlstore.ErrCompacted) {
		f.must(err)
	}
}
