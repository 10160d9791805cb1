package storetest

import (
	"fmt"
	"slices"
	"sync"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// awkwardKeys are in order. Text collations, and code that takes a zero byte for an end, get some of them wrong.
var awkwardKeys = []string{
	"\x00", "\x00\x00", "\x01", "/", "/a", "A", "B", "a", "a\x00", "a\x00b", "a/", "a/b", "a\xff", "a\xff\xff", "b",
	"é", "\xff", "\xff\x00", "\xff\xff",
}

var rangeCases = []testCase{
	{name: "EveryForm_I6", run: everyRange},
	{name: "EmptyValuesAndKeysOnly", run: func(f *fixture) {
		f.put("a", "")
		f.put("b", "1")
		for _, revision := range []sqlstore.Revision{0, 2, 3} {
			r := sqlstore.RangeRequest{KeyRange: everything, Revision: revision, Fields: sqlstore.KeyFields}
			want := []string{"a= m2 c2 v1", "b= m3 c3 v1"}
			if revision == 2 {
				want = want[:1]
			}
			res := f.rangeOf(r)
			same(f, "keys only", describe(res.KVs), want)
			equal(f, "count", res.Count, int64(len(want)))
			r.Fields = sqlstore.NoFields
			res = f.rangeOf(r)
			same(f, "count only", describe(res.KVs), nil)
			equal(f, "count", res.Count, int64(len(want)))
			equal(f, "revision", res.Revision, 3)
		}
	}},
	{name: "PagesWhileTheListChanges_I4", run: func(f *fixture) {
		for i := range 10 {
			f.put(fmt.Sprintf("a/%d", i), "x")
		}
		const at = 11
		page := func(after, end string, revision sqlstore.Revision, keys int, count int64) {
			f.Helper()
			keysOf := sqlstore.KeyRange{Key: []byte(after), End: []byte(end)}
			res := f.rangeOf(sqlstore.RangeRequest{KeyRange: keysOf, Limit: 4, Revision: revision})
			equal(f, "keys", len(res.KVs), keys)
			equal(f, "count", res.Count, count)
			equal(f, "more", res.More, count > int64(keys))
		}
		page("a/", "a0", 0, 4, 10)
		f.delete(single("a/5"))
		f.put("a/41", "x")
		f.put("a/42", "x")
		for range 2 { // the second time what is left is known
			page("a/3\x00", "a0", at, 4, 6)
			page("a/7\x00", "a0", at, 2, 2)
			page("a/3\x00", "a/6", at, 2, 2)
			page("a/3\x00", "a0", at+1, 4, 5)
			page("a/3\x00", "a0", 0, 4, 7)
		}
	}},
	{name: "LimitMoreAndCount", run: func(f *fixture) {
		for i := range 5 {
			f.put(fmt.Sprintf("a/%d", i), "x")
		}
		f.put("b", "x")
		f.delete(single("a/4"))
		for _, revision := range []sqlstore.Revision{0, 7} {
			n := 4
			if revision == 7 {
				n = 5
			}
			for limit := range n + 2 {
				res := f.rangeOf(sqlstore.RangeRequest{KeyRange: prefix("a/"), Limit: int64(limit), Revision: revision})
				want := limit
				if limit == 0 || limit > n {
					want = n
				}
				equal(f, "keys", len(res.KVs), want)
				equal(f, "more", res.More, want < n)
				equal(f, "count", res.Count, int64(n))
			}
		}
	}},
	{name: "HistoryAtEveryRevision", run: func(f *fixture) {
		states := [][]string{nil, nil} // by revision
		for _, r := range []sqlstore.TxnRequest{
			ops(put("a", "1")), ops(put("b", "1"), put("c", "1")), ops(put("a", "2"), del(single("b"))), ops(put("b", "2")),
			ops(del(everything)), ops(put("c", "3")), ops(put("c", "4")), ops(del(single("c"))), ops(put("a", "5"), put("d", "5")),
		} {
			f.txn(r)
			states = append(states, f.list(everything, 0))
		}
		for revision := 1; revision < len(states); revision++ {
			same(f, fmt.Sprintf("revision %d", revision), f.list(everything, sqlstore.Revision(revision)), states[revision])
		}
	}},
	{name: "SortAndBounds", run: sortAndBounds},
	{name: "Errors", run: func(f *fixture) {
		for range 5 {
			f.put("a", "1")
		}
		_, err := f.Range(f.ctx, &sqlstore.RangeRequest{KeyRange: single("a"), Revision: 7})
		f.fails(err, sqlstore.ErrFutureRevision)
		f.compact(4)
		_, err = f.Range(f.ctx, &sqlstore.RangeRequest{KeyRange: single("a"), Revision: 3})
		f.fails(err, sqlstore.ErrCompacted)
		same(f, "at the compact revision", f.list(single("a"), 4), []string{"a=1 m4 c2 v3"})
		same(f, "at a negative revision", f.list(single("a"), -1), []string{"a=1 m6 c2 v5"})
	}},
	{name: "OneSnapshot_I4", run: oneSnapshot},
}

// everyRange reads each range between two awkward keys, at two revisions.
func everyRange(f *fixture) {
	for i, key := range awkwardKeys {
		f.put(key, fmt.Sprint(i))
	}
	full := f.current()
	f.txn(ops(del(span("A", "a/b")), put("c", "1")))
	states := map[sqlstore.Revision][]string{full: awkwardKeys}
	for _, key := range append(slices.Clone(awkwardKeys), "c") {
		if key < "A" || key >= "a/b" {
			states[0] = append(states[0], key)
		}
	}
	slices.Sort(states[0])
	for revision, keys := range states {
		for _, key := range awkwardKeys {
			for _, end := range append([]string{""}, awkwardKeys...) {
				var want []string
				for _, k := range keys {
					if k == key || end == "\x00" && k >= key || end != "" && end != "\x00" && k >= key && k < end {
						want = append(want, k)
					}
				}
				if end != "" && end != "\x00" && key >= end {
					want = nil
				}
				res := f.rangeOf(sqlstore.RangeRequest{KeyRange: span(key, end), Revision: revision, Limit: 3})
				what := fmt.Sprintf("[%q, %q) at %d", key, end, revision)
				same(f, what, keysOf(res.KVs), want[:min(3, len(want))])
				equal(f, what+": count", res.Count, int64(len(want)))
			}
		}
	}
	kvs := f.rangeOf(sqlstore.RangeRequest{KeyRange: everything, Revision: full}).KVs
	for i := range kvs {
		equal(f, "value", string(kvs[i].Value), fmt.Sprint(i))
	}
}

func sortAndBounds(f *fixture) {
	f.put("a", "5") // created at 2, changed at 7
	f.put("b", "3") // created at 3
	f.put("c", "4") // created at 4, changed at 5 and 6
	f.put("c", "1")
	f.put("c", "1")
	f.put("a", "2")
	for _, c := range []struct {
		r    sqlstore.RangeRequest
		want string
		more bool
	}{
		{sqlstore.RangeRequest{}, "abc", false},
		{sqlstore.RangeRequest{SortOrder: sqlstore.SortAscend}, "abc", false},
		{sqlstore.RangeRequest{SortOrder: sqlstore.SortDescend}, "cba", false},
		{sqlstore.RangeRequest{SortOrder: sqlstore.SortDescend, Limit: 2}, "cb", true},
		{sqlstore.RangeRequest{SortTarget: sqlstore.SortByVersion}, "bac", false},
		{sqlstore.RangeRequest{SortTarget: sqlstore.SortByVersion, SortOrder: sqlstore.SortDescend}, "cab", false},
		{sqlstore.RangeRequest{SortTarget: sqlstore.SortByCreate, SortOrder: sqlstore.SortDescend}, "cba", false},
		{sqlstore.RangeRequest{SortTarget: sqlstore.SortByMod, SortOrder: sqlstore.SortAscend}, "bca", false},
		{sqlstore.RangeRequest{SortTarget: sqlstore.SortByMod, Limit: 1}, "b", true},
		{sqlstore.RangeRequest{SortTarget: sqlstore.SortByValue}, "cab", false},
		{sqlstore.RangeRequest{SortTarget: sqlstore.SortByValue, Limit: 1}, "a", true}, // the first of the first two keys
		{sqlstore.RangeRequest{SortTarget: sqlstore.SortByValue, SortOrder: sqlstore.SortDescend, Fields: sqlstore.KeyFields}, "bac", false},
		{sqlstore.RangeRequest{MinModRevision: 6}, "ac", false},
		{sqlstore.RangeRequest{MaxModRevision: 6}, "bc", false},
		{sqlstore.RangeRequest{MinCreateRevision: 3, MaxCreateRevision: 3}, "b", false},
		{sqlstore.RangeRequest{MinCreateRevision: 3, Limit: 1}, "b", true},
		{sqlstore.RangeRequest{MinModRevision: 100}, "", false},
		{sqlstore.RangeRequest{SortTarget: sqlstore.SortByValue, Revision: 4}, "bca", false},
		{sqlstore.RangeRequest{MaxModRevision: 3, Revision: 4}, "ab", false},
	} {
		c.r.KeyRange = everything
		res := f.rangeOf(c.r)
		got := ""
		for _, kv := range res.KVs {
			got += string(kv.Key)
			if c.r.Fields == sqlstore.KeyFields && len(kv.Value) > 0 {
				f.Errorf("%+v: a value although only keys were asked for", c.r)
			}
		}
		equal(f, fmt.Sprintf("%+v", c.r), got, c.want)
		equal(f, fmt.Sprintf("%+v: more", c.r), res.More, c.more)
		equal(f, fmt.Sprintf("%+v: count", c.r), res.Count, 3)
	}
}

// oneSnapshot reads while a single key moves about: each revision deletes it in one place and puts it in another, so a read that
// mixes two revisions finds none or two, or a header that does not belong to it.
func oneSnapshot(f *fixture) {
	const moves = 150
	f.put("k/0", "")
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := range moves {
			r := ops(del(single(fmt.Sprintf("k/%d", i%5))), put(fmt.Sprintf("k/%d", (i+1)%5), ""))
			if _, err := f.Txn(f.ctx, &r); err != nil {
				f.Error(err)
				return
			}
		}
	})
	defer writer.Wait()
	for last := sqlstore.Revision(0); last < moves+2; {
		res := f.rangeOf(sqlstore.RangeRequest{KeyRange: prefix("k/"), Limit: 10})
		if len(res.KVs) != 1 || res.Count != 1 {
			f.Fatalf("at revision %d: %v, count %d", res.Revision, describe(res.KVs), res.Count)
		}
		equal(f, "revision of the key and of the header", res.KVs[0].ModRevision, res.Revision)
		if res.Revision < last {
			f.Fatalf("I2: revision %d was read after %d", res.Revision, last)
		}
		last = res.Revision
	}
}
