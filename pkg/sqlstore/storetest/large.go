package storetest

import (
	"testing"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// RunFrom checks that a store whose current revision is this one works as any other: others ran out of ids at 2^31. at makes an empty
// database that stands there, compacted.
func RunFrom(t *testing.T, revision sqlstore.Revision, at func(t *testing.T) Opener) {
	f := newFixture(t, at(t), sqlstore.Options{})
	equal(f, "revision at the start", f.current(), revision)
	live := f.stream().watch(sqlstore.WatchRequest{KeyRange: everything})
	f.grant(1<<62, 100)
	equal(f, "revision", f.txn(ops(putLeased("a", "1", 1<<62), put("b", "1"))).Revision, revision+1)
	f.put("a", "2")
	f.txn(sqlstore.TxnRequest{Compare: []sqlstore.Compare{modIs("a", revision+2)}, Success: []sqlstore.Op{put("a", "3"), del(single("b"))}})
	equal(f, "current revision", f.current(), revision+3)
	a := func(i int64, value string) sqlstore.KeyValue {
		kv := sqlstore.KeyValue{
			Key: []byte("a"), Value: []byte(value), CreateRevision: revision + 1, ModRevision: revision + sqlstore.Revision(i), Version: i,
		}
		if i == 1 {
			kv.Lease = 1 << 62
		}
		return kv
	}
	b := sqlstore.KeyValue{Key: []byte("b"), Value: []byte("1"), CreateRevision: revision + 1, ModRevision: revision + 1, Version: 1}
	same(f, "keys", f.list(everything, 0), describe([]sqlstore.KeyValue{a(3, "3")}))
	same(f, "keys before", f.list(everything, revision+1), describe([]sqlstore.KeyValue{a(1, "1"), b}))
	a1, a2 := a(1, "1"), a(2, "2")
	log := describeEvents([]*sqlstore.Event{
		{KV: a1}, {KV: b}, {KV: a2, Prev: &a1}, {KV: a(3, "3"), Prev: &a2},
		{Type: sqlstore.EventDelete, KV: sqlstore.KeyValue{Key: []byte("b"), ModRevision: revision + 3}, Prev: &b},
	})
	live.expect(log...)
	f.reopen()
	f.stream().watch(sqlstore.WatchRequest{KeyRange: everything, From: revision + 1}).expect(log...)
	f.compact(revision + 2)
	same(f, "keys at the compact revision", f.list(everything, revision+2), describe([]sqlstore.KeyValue{a2, b}))
	_, err := f.Range(f.ctx, &sqlstore.RangeRequest{KeyRange: everything, Revision: revision + 1})
	f.fails(err, sqlstore.ErrCompacted)
	f.finish()
}
