package storetest

import (
	"fmt"
	"strings"

	"github.com/kubase/kubase/pkg/sqlstore"
)

var rangeStreamCases = []testCase{
	{name: "EqualsRange", run: func(f *fixture) {
		last := f.fill(300)
		f.txn(ops(del(span("k/0100", "k/0200")), put("k/0000", "new")))
		f.put("z", "")
		for _, r := range []sqlstore.RangeRequest{
			{KeyRange: everything},
			{KeyRange: prefix("k/")},
			{KeyRange: prefix("k/"), Revision: last},
			{KeyRange: fromKey("k/0250")},
			{KeyRange: single("k/0000")},
			{KeyRange: prefix("none/")},
			{KeyRange: everything, Fields: sqlstore.KeyFields},
			{KeyRange: everything, Fields: sqlstore.NoFields},
			{KeyRange: everything, Limit: 1},
			{KeyRange: everything, Limit: 64},
			{KeyRange: everything, Limit: 65, Revision: last},
			{KeyRange: prefix("k/"), Limit: 200},
			{KeyRange: prefix("k/"), Limit: 199},
			{KeyRange: prefix("k/"), Limit: 201},
		} {
			for _, chunk := range []int{1, 1000, 1 << 20} {
				what := fmt.Sprintf("%+v in chunks of %d: ", r, chunk)
				want := f.rangeOf(r)
				got, chunks := f.rangeStream(r, chunk, nil)
				same(f, what+"keys", describe(got.KVs), describe(want.KVs))
				equal(f, what+"count", got.Count, want.Count)
				equal(f, what+"more", got.More, want.More)
				equal(f, what+"revision", got.Revision, want.Revision)
				if chunk == 1 && len(want.KVs) > 64 && chunks < 2 {
					f.Errorf("%s%d keys came at once", what, len(want.KVs))
				}
			}
		}
	}},
	{name: "StaysAtItsRevision_I4", run: func(f *fixture) {
		last := f.fill(200)
		want := f.list(everything, 0)
		writes := 0
		got, _ := f.rangeStream(sqlstore.RangeRequest{KeyRange: everything}, 1, func() {
			f.txn(ops(put(fmt.Sprintf("k/%04d", 199-writes), "new"), del(single(fmt.Sprintf("k/%04d", 100+writes))), put("zz", "")))
			writes++
		})
		if writes < 3 {
			f.Fatalf("only %d chunks", writes)
		}
		same(f, "keys", describe(got.KVs), want)
		equal(f, "revision", got.Revision, last)
	}},
	{name: "CompactionInBetween", run: func(f *fixture) {
		last := f.fill(200)
		for _, c := range []struct {
			to  sqlstore.Revision
			err error
		}{{last, nil}, {last + 1, sqlstore.ErrCompacted}} {
			compacted := false
			err := f.RangeStream(f.ctx, &sqlstore.RangeRequest{KeyRange: everything, Revision: last}, 1,
				func(*sqlstore.RangeResult) error {
					if !compacted {
						compacted = true
						f.put("k/0199", "new")
						f.compact(c.to)
					}
					return nil
				})
			f.fails(err, c.err)
			equal(f, "compacted", compacted, true)
		}
	}},
	{name: "Errors", run: func(f *fixture) {
		f.fill(100)
		send := func(*sqlstore.RangeResult) error { return errStop }
		f.fails(f.RangeStream(f.ctx, &sqlstore.RangeRequest{KeyRange: everything}, 1, send), errStop)
		f.fails(f.RangeStream(f.ctx, &sqlstore.RangeRequest{KeyRange: everything, Revision: 99}, 1, send), sqlstore.ErrFutureRevision)
		f.compact(2)
		f.fails(f.RangeStream(f.ctx, &sqlstore.RangeRequest{KeyRange: everything, Revision: 1}, 1, send), sqlstore.ErrCompacted)
	}},
}

const errStop = constError("stop")

type constError string

func (e constError) Error() string { return string(e) }

// fill puts n keys in one Txn and returns its revision.
func (f *fixture) fill(n int) sqlstore.Revision {
	f.Helper()
	list := make([]sqlstore.Op, n)
	for i := range list {
		list[i] = put(fmt.Sprintf("k/%04d", i), strings.Repeat("v", i%50))
	}
	return f.txn(ops(list...)).Revision
}

// rangeStream puts the chunks together and checks that only the last one says more than keys. between runs after each chunk but the
// last.
func (f *fixture) rangeStream(r sqlstore.RangeRequest, chunkBytes int, between func()) (all sqlstore.RangeResult, chunks int) {
	f.Helper()
	ended := false
	f.must(f.RangeStream(f.ctx, &r, chunkBytes, func(res *sqlstore.RangeResult) error {
		if ended {
			f.Error("a chunk after the last one")
		}
		chunks++
		all.KVs = append(all.KVs, res.KVs...)
		if ended = res.Revision != 0; ended {
			all.Revision, all.Count, all.More = res.Revision, res.Count, res.More
			return nil
		}
		if res.Count != 0 || res.More || len(res.KVs) == 0 {
			f.Errorf("a chunk that is not the last has %d keys, count %d, more %v", len(res.KVs), res.Count, res.More)
		}
		if between != nil {
			between()
		}
		return nil
	}))
	if !ended {
		f.Error("no last chunk")
	}
	return all, chunks
}
