package storetest

import (
	"fmt"
	"regexp"
	"time"

	"github.com/kubase/kubase/pkg/sqlstore"
)

var compactCases = []testCase{
	{name: "KeepsHistoryFromItsRevisionOn_I5", run: func(f *fixture) {
		f.put("a", "1")                                        // 2: replaced at 4
		f.put("b", "1")                                        // 3: deleted at 5
		f.put("a", "2")                                        // 4
		f.delete(single("b"))                                  // 5: a tombstone
		f.put("c", "1")                                        // 6
		f.put("a", "3")                                        // 7
		f.delete(single("c"))                                  // 8
		f.put("b", "2")                                        // 9
		states := [][]string{nil}                              // by revision
		for r := sqlstore.Revision(1); r <= f.current(); r++ { // as they are before
			states = append(states, f.list(everything, r))
		}
		_, err := f.Compact(f.ctx, 6)
		f.must(err)
		f.compact(7)
		same(f, "rows left", f.stored(), []string{"c=1 m6 c6 v1/0", "a=3 m7 c2 v3/0", "c= m8 c0 v0/0", "b=2 m9 c9 v1/0"})
		for r := range sqlstore.Revision(len(states)) {
			if r >= 7 {
				same(f, fmt.Sprintf("revision %d", r), f.list(everything, r), states[r])
			} else if r > 0 {
				_, err := f.Range(f.ctx, &sqlstore.RangeRequest{KeyRange: everything, Revision: r})
				f.fails(err, sqlstore.ErrCompacted)
			}
		}
		equal(f, "current revision", f.current(), 9)
	}},
	{name: "AnswersTheCurrentRevision", run: func(f *fixture) {
		f.put("a", "1")
		f.put("a", "2")
		current, err := f.Compact(f.ctx, 2)
		f.must(err)
		equal(f, "current revision", current, 3)
	}},
	{name: "IsRemembered", run: func(f *fixture) {
		f.put("a", "1")
		f.put("a", "2")
		d, err := f.Describe(f.ctx)
		f.must(err)
		equal(f, "last compaction", d.LastCompaction, sqlstore.Compaction{})
		before := time.Now().Truncate(time.Microsecond) // which is how exactly engines keep it
		f.compact(2)
		_, err = f.Compact(f.ctx, 2) // refused, so not remembered
		f.fails(err, sqlstore.ErrCompacted)
		d, err = f.Describe(f.ctx)
		f.must(err)
		last := d.LastCompaction
		equal(f, "revision", last.Revision, 2)
		if last.Began.Before(before) || last.Ended.Before(last.Began) || last.Ended.After(time.Now()) {
			f.Errorf("it says that it compacted from %s to %s, not since %s", last.Began, last.Ended, before)
		}
		equal(f, "reached", d.Reached, 2)
		equal(f, "compact revision", d.Meta.CompactRevision, 2)
		if !regexp.MustCompile(`^[0-9]+\.[0-9]+`).MatchString(d.Version) {
			f.Errorf("version %q", d.Version)
		}
		// Another process stores a compaction and ends before it deletes anything.
		tx, _, err := f.engine.Begin(f.ctx, nil)
		f.must(err)
		meta := tx.Meta()
		meta.CompactRevision = 3
		f.must(tx.Commit(f.ctx, nil, meta))
		d, err = f.engine.Describe(f.ctx)
		f.must(err)
		equal(f, "reached, before the work", d.Reached, 2)
		equal(f, "compact revision, before the work", d.Meta.CompactRevision, 3)
		equal(f, "last compaction, before the work", d.LastCompaction, last)
		f.reopen()
		// The next process does the work, and knows of it.
		f.eventually("the rest is deleted", func() bool {
			d, err = f.Describe(f.ctx)
			f.must(err)
			return d.Reached == 3
		})
		equal(f, "last compaction of the next process", d.LastCompaction.Revision, 3)
		if d.LastCompaction.Began.Before(last.Ended) {
			f.Errorf("the second compaction began at %s, the first one ended at %s", d.LastCompaction.Began, last.Ended)
		}
	}},
	{name: "Errors", run: func(f *fixture) {
		for range 4 {
			f.put("a", "x")
		}
		_, err := f.Compact(f.ctx, 6)
		f.fails(err, sqlstore.ErrFutureRevision)
		f.compact(3)
		for _, revision := range []sqlstore.Revision{3, 2, 0, -1} {
			_, err = f.Compact(f.ctx, revision)
			f.fails(err, sqlstore.ErrCompacted)
		}
		f.compact(5) // the current one
		same(f, "key", f.list(single("a"), 0), []string{"a=x m5 c2 v4"})
		same(f, "rows left", f.stored(), []string{"a=x m5 c2 v4/0"})
	}},
	{name: "TombstoneAtTheCompactRevision", run: func(f *fixture) {
		f.put("a", "1")
		f.delete(single("a"))
		f.put("b", "1")
		f.compact(3)
		f.reopen()
		w := f.stream().watch(sqlstore.WatchRequest{KeyRange: everything, From: 3})
		w.expect("delete a= m3 c0 v0, was none", "put b=1 m4 c4 v1, was none")
		f.compact(4)
		same(f, "rows left", f.stored(), []string{"b=1 m4 c4 v1/0"})
		f.put("a", "2")
		same(f, "key created again", f.list(single("a"), 0), []string{"a=2 m5 c5 v1"})
	}},
	{name: "KeysThatNeverChangeStay", run: func(f *fixture) {
		f.put("old", "1")
		for i := range 20 {
			f.put("a", fmt.Sprint(i))
			f.compact(f.current())
		}
		same(f, "keys", f.list(everything, 0), []string{"a=19 m22 c3 v20", "old=1 m2 c2 v1"})
		equal(f, "rows left", len(f.stored()), 2)
	}},
	{name: "LargeBacklog", run: func(f *fixture) {
		f.backlog(40, 100)
		before := f.list(everything, 0)
		f.compact(f.current())
		same(f, "keys", f.list(everything, 0), before)
		equal(f, "rows left", len(f.stored()), 100)
	}},
	{name: "WhileWriting", run: func(f *fixture) {
		f.backlog(20, 100)
		compacted := make(chan error, 1)
		go func() {
			_, err := f.CompactPhysically(f.ctx, 21)
			compacted <- err
		}()
		for i := range 50 {
			f.put(fmt.Sprintf("k/%d", i), "new")
		}
		f.must(<-compacted)
		equal(f, "rows left", len(f.stored()), 150)
	}},
	{name: "CursorGoesOnAfterReopen", run: func(f *fixture) {
		f.backlog(20, 10)
		_, err := f.Compact(f.ctx, f.current())
		f.must(err)
		f.must(f.Close()) // wherever the background work is
		slices, reached := 0, sqlstore.Revision(-1)
		for done := false; !done; slices++ {
			engine := f.open(f.T)
			done, err = engine.DeleteHistory(f.ctx, 7)
			f.must(err)
			f.must(sqlstore.Verify(f.ctx, engine))
			before := reached
			f.must(engine.Walk(f.ctx, sqlstore.Visitor{
				Meta:   func(_ sqlstore.Meta, r sqlstore.Revision) error { reached = r; return nil },
				Lease:  func(sqlstore.Lease) error { return nil },
				Change: func(*sqlstore.Change) error { return nil },
				Key:    func(*sqlstore.Row) error { return nil },
			}))
			if !done && reached <= before {
				f.Fatalf("the cursor went from %d to %d", before, reached)
			}
			f.must(engine.Close())
		}
		equal(f, "cursor at the end", reached, 21)
		f.start()
		equal(f, "rows left", len(f.stored()), 10)
	}},
	{name: "StoreGoesOnAfterReopen", run: func(f *fixture) {
		f.backlog(100, 20)
		_, err := f.Compact(f.ctx, f.current())
		f.must(err)
		f.reopen()
		for f.ctx.Err() == nil && len(f.stored()) > 20 { // nobody calls Compact again
		}
		equal(f, "rows left", len(f.stored()), 20)
	}},
}

// backlog writes n revisions that change the same keys.
func (f *fixture) backlog(revisions, keys int) {
	f.Helper()
	for i := range revisions {
		list := make([]sqlstore.Op, keys)
		for j := range list {
			list[j] = put(fmt.Sprintf("k/%d", j), fmt.Sprint(i))
		}
		f.txn(ops(list...))
	}
}
