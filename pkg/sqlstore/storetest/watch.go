package storetest

import (
	"context"
	"fmt"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// small makes every catch-up read history, because the ring holds nothing.
var small = sqlstore.Options{RingBytes: 1}

var watchCases = []testCase{
	{name: "FromNow", run: func(f *fixture) {
		f.put("a", "1")
		s := f.stream()
		w := s.watch(sqlstore.WatchRequest{KeyRange: single("a")})
		f.put("a", "2")
		f.put("b", "2")
		f.delete(everything)
		w.expect("put a=2 m3 c2 v2, was a=1 m2 c2 v1", "delete a= m5 c0 v0, was a=2 m3 c2 v2")
	}},
	{name: "FromEveryRevision_Ring", run: fromEveryRevision},
	{name: "FromEveryRevision_History_I7", run: fromEveryRevision, options: small},
	{name: "FromTheFuture", run: func(f *fixture) {
		s := f.stream()
		w := s.watch(sqlstore.WatchRequest{KeyRange: single("a"), From: 4})
		for range 4 {
			f.put("a", "x")
		}
		w.expect("put a=x m4 c2 v3, was a=x m3 c2 v2", "put a=x m5 c2 v4, was a=x m4 c2 v3")
	}},
	{name: "FromCompacted", run: func(f *fixture) {
		for range 5 {
			f.put("a", "x")
		}
		f.compact(4)
		f.reopen()
		s := f.stream()
		old := s.watch(sqlstore.WatchRequest{KeyRange: single("a"), From: 3})
		edge := s.watch(sqlstore.WatchRequest{KeyRange: single("a"), From: 4})
		s.until("the end of the watcher", func() bool { return old.compacted != 0 })
		equal(f, "compact revision", old.compacted, 4)
		equal(f, "events of the ended watcher", len(old.events), 0)
		f.put("a", "y") // goes to edge only
		edge.expect("put a=x m4 c2 v3, was none", "put a=x m5 c2 v4, was a=x m4 c2 v3", "put a=x m6 c2 v5, was a=x m5 c2 v4",
			"put a=y m7 c2 v6, was a=x m6 c2 v5")
	}},
	{name: "CompactedWhileUnsynced", options: small, run: func(f *fixture) {
		for range 5 {
			f.put("a", "x")
		}
		s := f.stream()
		w := s.watch(sqlstore.WatchRequest{KeyRange: single("a"), From: 2})
		f.compact(4)
		s.until("the end of the watcher", func() bool { return w.compacted != 0 })
		equal(f, "compact revision", w.compacted, 4)
	}},
	{name: "CompactionDoesNotEndASyncedWatcher", run: func(f *fixture) {
		s := f.stream()
		w := s.watch(sqlstore.WatchRequest{KeyRange: single("a")})
		f.put("a", "1")
		f.put("a", "2")
		w.wait(2)
		f.compact(3)
		f.put("a", "3")
		w.wait(3)
		equal(f, "event", eventString(w.events[2]), "put a=3 m4 c2 v3, was a=2 m3 c2 v2")
	}},
	{name: "PreviousValuesAfterCompaction_I5", options: small, run: func(f *fixture) {
		f.put("a", "1")
		f.put("a", "2")
		f.put("b", "1")
		f.compact(4)
		f.put("a", "3")
		f.delete(single("b"))
		w := f.stream().watch(sqlstore.WatchRequest{KeyRange: everything, From: 5})
		w.expect("put a=3 m5 c2 v3, was a=2 m3 c2 v2", "delete b= m6 c0 v0, was b=1 m4 c4 v1")
	}},
	{name: "Filters_Ring", run: filters},
	{name: "Filters_History", run: filters, options: small},
	{name: "ARevisionIsNeverSplit_I8", run: neverSplit},
	{name: "ARevisionIsNeverSplit_History_I8", run: neverSplit, options: small},
	{name: "SlowConsumer_I8", run: slowConsumer},
	{name: "SlowConsumer_History_I8", run: slowConsumer, options: sqlstore.Options{RingBytes: 100 << 10}},
	{name: "Progress_I8", run: progress},
	{name: "Progress_History_I8", run: progress, options: small},
	{name: "Cancel", run: func(f *fixture) {
		s := f.stream()
		ended := s.watch(sqlstore.WatchRequest{KeyRange: prefix("a")})
		stays := s.watch(sqlstore.WatchRequest{KeyRange: prefix("a")})
		f.put("a", "1")
		s.Cancel(ended.watcher) // with an event in its queue
		ended.cancelled = true
		f.put("a", "2")
		stays.wait(2)
		history := s.watch(sqlstore.WatchRequest{KeyRange: prefix("a"), From: 2})
		s.Cancel(history.watcher)
		s.Cancel(history.watcher) // again does nothing
		history.cancelled = true
		f.put("a", "3")
		stays.wait(3)
		s.settle()
		s.Close()
		f.put("a", "4")
		ctx, cancel := context.WithCancel(f.ctx)
		cancel()
		f.fails(s.step(ctx), context.Canceled)
	}},
	{name: "NextEndsWithItsContext", run: func(f *fixture) {
		s := f.stream()
		w := s.watch(sqlstore.WatchRequest{KeyRange: everything})
		ctx, cancel := context.WithCancel(f.ctx)
		ended := make(chan error)
		go func() {
			_, err := s.Next(ctx)
			ended <- err
		}()
		cancel()
		f.fails(<-ended, context.Canceled)
		f.put("a", "1") // nothing is lost
		w.expect("put a=1 m2 c2 v1, was none")
	}},
}

func fromEveryRevision(f *fixture) {
	f.put("a", "1")
	f.txn(ops(put("a", "2"), put("b", "1"), put("aa", "1")))
	f.put("x", "1")
	f.delete(prefix("a"))
	f.put("a", "3")
	log := []string{
		"put a=1 m2 c2 v1, was none",
		"put a=2 m3 c2 v2, was a=1 m2 c2 v1", "put aa=1 m3 c3 v1, was none",
		"delete a= m5 c0 v0, was a=2 m3 c2 v2", "delete aa= m5 c0 v0, was aa=1 m3 c3 v1",
		"put a=3 m6 c6 v1, was none",
		"put a=4 m7 c6 v2, was a=3 m6 c6 v1",
	}
	first := map[sqlstore.Revision]int{1: 0, 2: 0, 3: 1, 4: 3, 5: 3, 6: 5, 7: 6}
	s := f.stream()
	watches := map[sqlstore.Revision]*watch{}
	for from := range first {
		watches[from] = s.watch(sqlstore.WatchRequest{KeyRange: prefix("a"), From: from})
	}
	f.put("a", "4") // while some have not caught up
	s.settle()
	for from, w := range watches {
		same(f, fmt.Sprintf("events from revision %d", from), describeEvents(w.events), log[first[from]:])
	}
}

func filters(f *fixture) {
	s := f.stream()
	live := s.watch(sqlstore.WatchRequest{KeyRange: single("a"), NoPut: true})
	f.put("a", "1")
	f.delete(single("a"))
	f.put("a", "2")
	deletes := []string{"delete a= m3 c0 v0, was a=1 m2 c2 v1"}
	puts := []string{"put a=1 m2 c2 v1, was none", "put a=2 m4 c4 v1, was none"}
	live.expect(deletes...)
	s.watch(sqlstore.WatchRequest{KeyRange: single("a"), From: 1, NoPut: true}).expect(deletes...)
	s.watch(sqlstore.WatchRequest{KeyRange: single("a"), From: 1, NoDelete: true}).expect(puts...)
	s.watch(sqlstore.WatchRequest{KeyRange: single("a"), From: 1, NoPut: true, NoDelete: true}).expect()
}

// neverSplit has revisions larger than a page of history (500 events) and than a batch (1 MiB), between small ones.
func neverSplit(f *fixture) {
	s := f.stream()
	live := s.watch(sqlstore.WatchRequest{KeyRange: everything})
	want := 0
	for i, n := range []int{1, 499, 1, 1200, 500, 2} {
		list := make([]sqlstore.Op, n)
		for j := range list {
			list[j] = put(fmt.Sprintf("%d/%d", i, j), "v")
		}
		f.txn(ops(list...))
		want += n
	}
	value := string(make([]byte, 400<<10))
	f.txn(ops(put("l/1", value), put("l/2", value), put("l/3", value), put("l/4", value)))
	f.txn(ops(put("l/1", value), put("l/2", value), put("l/3", value), put("l/4", value)))
	want += 8
	late := s.watch(sqlstore.WatchRequest{KeyRange: everything, From: 2})
	s.settle() // the stream checks that no revision is split
	for _, w := range []*watch{live, late} {
		equal(f, "events", len(w.events), want)
		if w.batches < 2 {
			f.Errorf("all %d events came in %d batch", want, w.batches)
		}
	}
}

// slowConsumer lets more events pass than a watcher's queue holds (10,000) before it takes the first.
func slowConsumer(f *fixture) {
	const revisions, each = 55, 200
	s := f.stream()
	w := s.watch(sqlstore.WatchRequest{KeyRange: prefix("k/")})
	one := s.watch(sqlstore.WatchRequest{KeyRange: single("k/7")})
	for i := range revisions {
		list := make([]sqlstore.Op, each)
		for j := range list {
			list[j] = put(fmt.Sprintf("k/%d", j), fmt.Sprint(i))
		}
		f.txn(ops(list...))
	}
	s.settle()
	f.put("k/7", "end")
	s.settle()
	equal(f, "events", len(w.events), revisions*each+1)
	equal(f, "events of one key", len(one.events), revisions+1)
	for i, e := range w.events[:revisions*each] {
		if e.KV.ModRevision != sqlstore.Revision(i/each+2) || string(e.KV.Key) != fmt.Sprintf("k/%d", i%each) {
			f.Fatalf("event %d is %s", i, eventString(e))
		}
	}
}

func progress(f *fixture) {
	s := f.stream()
	w := s.watch(sqlstore.WatchRequest{KeyRange: prefix("a"), From: 1})
	other := s.watch(sqlstore.WatchRequest{KeyRange: prefix("b"), From: 1})
	w.settle()
	equal(f, "progress of the empty store", w.progress, 1)
	for i := range 20 {
		f.put("a", "x")
		if i%3 == 0 {
			w.settle()
		} else {
			s.settle()
		}
		equal(f, "events before progress", len(w.events), i+1)
		equal(f, "events of the other watcher", len(other.events), 0)
	}
	equal(f, "progress", s.progress, 21)
	f.put("c", "x") // matches no watcher
	s.settle()
	equal(f, "progress past what nobody watches", s.progress, 22)
	s.Cancel(w.watcher)
	w.cancelled = true
	s.settle()
}
