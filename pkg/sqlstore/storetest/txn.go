package storetest

import (
	"bytes"
	"strings"

	"github.com/kubase/kubase/pkg/sqlstore"
)

var txnCases = []testCase{
	{name: "PutCountsVersions", run: func(f *fixture) {
		equal(f, "revision of the empty store", f.current(), 1)
		for i, want := range []string{"a=x m2 c2 v1", "a=x m3 c2 v2", "a=x m4 c2 v3"} {
			equal(f, "revision", f.put("a", "x"), sqlstore.Revision(i+2))
			same(f, "key", f.list(single("a"), 0), []string{want})
		}
		equal(f, "deleted", f.delete(single("a")).Deleted, 1)
		same(f, "deleted key", f.list(single("a"), 0), nil)
		f.put("a", "y")
		same(f, "key created again", f.list(single("a"), 0), []string{"a=y m6 c6 v1"})
	}},
	{name: "PrevKV", run: func(f *fixture) {
		withPrev := sqlstore.Op{Put: &sqlstore.PutRequest{Key: []byte("a"), Value: []byte("2"), PrevKV: true}}
		res := f.txn(ops(withPrev))
		equal(f, "prev of a new key", kvString(res.Responses[0].Put.Prev), "none")
		res = f.txn(ops(withPrev))
		equal(f, "prev of a put", kvString(res.Responses[0].Put.Prev), "a=2 m2 c2 v1")
		equal(f, "revision of a put", res.Responses[0].Put.Revision, 3)
		res = f.txn(ops(put("a", "3")))
		equal(f, "prev not asked for", kvString(res.Responses[0].Put.Prev), "none")
		same(f, "prev of a delete", describe(f.delete(single("a")).Prev), []string{"a=3 m4 c2 v3"})
		res = f.txn(ops(put("a", "4"), sqlstore.Op{Delete: &sqlstore.DeleteRequest{KeyRange: single("b")}}))
		equal(f, "prev of a delete not asked for", len(res.Responses[1].Delete.Prev), 0)
	}},
	{name: "DeleteRanges", run: func(f *fixture) {
		f.txn(ops(put("a", "1"), put("a/1", "2"), put("a/2", "3"), put("b", "4"), put("c", "5"), put("d", "6")))
		res := f.delete(prefix("a/"))
		equal(f, "revision", res.Revision, 3)
		same(f, "prefix", describe(res.Prev), []string{"a/1=2 m2 c2 v1", "a/2=3 m2 c2 v1"})
		same(f, "span", keysOf(f.delete(span("b", "c")).Prev), []string{"b"})
		same(f, "from a key on", keysOf(f.delete(fromKey("c")).Prev), []string{"c", "d"})
		equal(f, "nothing", f.delete(prefix("x")).Deleted, 0)
		same(f, "left", f.list(everything, 0), []string{"a=1 m2 c2 v1"})
	}},
	{name: "FailedAndEmptyTxnsTakeNoRevision_I1", run: func(f *fixture) {
		f.put("a", "1")
		stream := f.stream()
		w := stream.watch(sqlstore.WatchRequest{KeyRange: everything, From: 3})
		for name, r := range map[string]sqlstore.TxnRequest{
			"no operations":           {},
			"read":                    ops(read(sqlstore.RangeRequest{KeyRange: everything})),
			"delete of nothing":       ops(del(single("b")), del(prefix("x"))),
			"comparison that fails":   {Compare: []sqlstore.Compare{modIs("a", 1)}, Success: []sqlstore.Op{put("a", "2")}},
			"nested without a change": ops(nested(ops(del(single("b"))))),
		} {
			equal(f, name, f.txn(r).Revision, 2)
		}
		for name, c := range map[string]struct {
			op  sqlstore.Op
			err error
		}{
			"missing lease": {putLeased("b", "1", 99), sqlstore.ErrLeaseNotFound},
			"missing key":   {sqlstore.Op{Put: &sqlstore.PutRequest{Key: []byte("b"), IgnoreValue: true}}, sqlstore.ErrKeyNotFound},
			"future read":   {read(sqlstore.RangeRequest{KeyRange: single("a"), Revision: 3}), sqlstore.ErrFutureRevision},
			"put twice":     {put("c", "2"), sqlstore.ErrDuplicateKey},
		} {
			f.Logf("failing: %s", name)
			r := ops(put("c", "1"), del(single("a")), c.op)
			_, err := f.Txn(f.ctx, &r)
			f.fails(err, c.err)
			equal(f, "revision afterwards", f.current(), 2)
		}
		same(f, "keys afterwards", f.list(everything, 0), []string{"a=1 m2 c2 v1"})
		equal(f, "next revision", f.put("b", "1"), 3)
		w.expect("put b=1 m3 c3 v1, was none")
	}},
	{name: "ChangesOfATxnShareARevision_I3", run: func(f *fixture) {
		f.txn(ops(put("b", "0"), put("d/1", "0"), put("d/2", "0")))
		stream := f.stream()
		w := stream.watch(sqlstore.WatchRequest{KeyRange: everything, From: 2})
		res := f.txn(ops(put("c", "1"), nested(ops(put("a", "2"), del(single("b")))), del(prefix("d/")), put("e", "3")))
		equal(f, "revision", res.Revision, 3)
		w.expect(
			"put b=0 m2 c2 v1, was none", "put d/1=0 m2 c2 v1, was none", "put d/2=0 m2 c2 v1, was none",
			"put c=1 m3 c3 v1, was none", "put a=2 m3 c3 v1, was none", "delete b= m3 c0 v0, was b=0 m2 c2 v1",
			"delete d/1= m3 c0 v0, was d/1=0 m2 c2 v1", "delete d/2= m3 c0 v0, was d/2=0 m2 c2 v1",
			"put e=3 m3 c3 v1, was none")
		same(f, "rows", f.stored()[3:], []string{"c=1 m3 c3 v1/0", "a=2 m3 c3 v1/1", "b= m3 c0 v0/2", "d/1= m3 c0 v0/3",
			"d/2= m3 c0 v0/4", "e=3 m3 c3 v1/5"})
	}},
	{name: "DuplicateKeys", run: duplicateKeys},
	{name: "PutAndDeleteOfAKeyInOneRevision", run: func(f *fixture) {
		// etcd lets a later nested Txn delete what an earlier one put.
		f.put("a", "1")
		f.txn(ops(nested(ops(put("a", "2"), put("b", "1"))), nested(ops(del(prefix("a")), del(single("b"))))))
		f.put("a", "3")
		same(f, "before", f.list(everything, 2), []string{"a=1 m2 c2 v1"})
		same(f, "at it", f.list(everything, 3), nil)
		same(f, "after", f.list(everything, 0), []string{"a=3 m4 c4 v1"})
		log := []string{
			"put a=2 m3 c2 v2, was a=1 m2 c2 v1", "put b=1 m3 c3 v1, was none",
			"delete a= m3 c0 v0, was a=1 m2 c2 v1", "delete b= m3 c0 v0, was none",
			"put a=3 m4 c4 v1, was none",
		}
		f.reopen() // so that the watch reads history
		f.stream().watch(sqlstore.WatchRequest{KeyRange: everything, From: 3}).expect(log...)
		f.compact(3)
		f.reopen()
		log[0], log[2] = "put a=2 m3 c2 v2, was none", "delete a= m3 c0 v0, was none"
		f.stream().watch(sqlstore.WatchRequest{KeyRange: everything, From: 3}).expect(log...)
		f.compact(4)
		same(f, "rows", f.stored(), []string{"a=3 m4 c4 v1/0"})
	}},
	{name: "DeleteAndPutOfAKeyInOneRevision", run: func(f *fixture) {
		// etcd overlooks that a delete without an upper end covers keys that are put.
		f.put("a", "1")
		f.txn(ops(del(fromKey("a")), put("a", "2"), nested(ops(del(fromKey("a"))))))
		f.txn(ops(put("a", "3"), del(fromKey("a")), put("b", "3")))
		f.txn(ops(del(fromKey("a")), put("b", "4")))
		log := []string{
			"delete a= m3 c0 v0, was a=1 m2 c2 v1", "put a=2 m3 c3 v1, was none", "delete a= m3 c0 v0, was a=1 m2 c2 v1",
			"put a=3 m4 c4 v1, was none", "delete a= m4 c0 v0, was none", "put b=3 m4 c4 v1, was none",
			"delete b= m5 c0 v0, was b=3 m4 c4 v1", "put b=4 m5 c5 v1, was none",
		}
		f.stream().watch(sqlstore.WatchRequest{KeyRange: everything, From: 3}).expect(log...)
		f.reopen() // so that the watch reads history
		f.stream().watch(sqlstore.WatchRequest{KeyRange: everything, From: 3}).expect(log...)
		for revision, want := range map[sqlstore.Revision][]string{
			2: {"a=1 m2 c2 v1"}, 3: nil, 4: {"b=3 m4 c4 v1"}, 5: {"b=4 m5 c5 v1"},
		} {
			same(f, "keys", f.list(everything, revision), want)
		}
		f.compact(4)
		f.must(sqlstore.Verify(f.ctx, f.engine))
		f.compact(5)
		f.put("c", "")
		f.compact(6)
		same(f, "rows", f.stored(), []string{"b=4 m5 c5 v1/1", "c= m6 c6 v1/0"})
	}},
	{name: "IgnoreValueAndLease", run: func(f *fixture) {
		f.grant(7, 100)
		f.grant(8, 100)
		f.txn(ops(putLeased("a", "1", 7)))
		f.txn(ops(sqlstore.Op{Put: &sqlstore.PutRequest{Key: []byte("a"), IgnoreValue: true, Lease: 8}}))
		same(f, "value kept", f.list(single("a"), 0), []string{"a=1 m3 c2 v2 l8"})
		f.txn(ops(sqlstore.Op{Put: &sqlstore.PutRequest{Key: []byte("a"), Value: []byte("2"), IgnoreLease: true}}))
		same(f, "lease kept", f.list(single("a"), 0), []string{"a=2 m4 c2 v3 l8"})
		f.txn(ops(sqlstore.Op{Put: &sqlstore.PutRequest{Key: []byte("a"), IgnoreValue: true, IgnoreLease: true}}))
		same(f, "both kept", f.list(single("a"), 0), []string{"a=2 m5 c2 v4 l8"})
		f.put("a", "3")
		same(f, "lease taken off", f.list(single("a"), 0), []string{"a=3 m6 c2 v5"})
		for _, p := range []sqlstore.PutRequest{{IgnoreValue: true}, {IgnoreLease: true}} {
			p.Key = []byte("b")
			r := ops(sqlstore.Op{Put: &p})
			_, err := f.Txn(f.ctx, &r)
			f.fails(err, sqlstore.ErrKeyNotFound)
		}
	}},
	{name: "TxnReadsItsOwnWrites", run: func(f *fixture) {
		f.txn(ops(put("a", "1"), put("b", "1"), put("c", "1")))
		all := sqlstore.RangeRequest{KeyRange: everything}
		res := f.txn(ops(
			read(all), put("b", "2"), read(sqlstore.RangeRequest{KeyRange: single("b")}), read(all),
			nested(ops(del(single("a")), read(all))), read(sqlstore.RangeRequest{KeyRange: single("a")}),
			read(sqlstore.RangeRequest{KeyRange: everything, Revision: 2}),
			read(sqlstore.RangeRequest{KeyRange: everything, Fields: sqlstore.NoFields}),
			read(sqlstore.RangeRequest{KeyRange: everything, Limit: 1}),
		))
		before := []string{"a=1 m2 c2 v1", "b=1 m2 c2 v1", "c=1 m2 c2 v1"}
		for i, want := range map[int][]string{
			0: before, 2: {"b=2 m3 c2 v2"}, 3: {"a=1 m2 c2 v1", "b=2 m3 c2 v2", "c=1 m2 c2 v1"}, 5: nil, 6: before, 7: nil,
			8: {"b=2 m3 c2 v2"},
		} {
			f.Logf("response %d", i)
			same(f, "read in the Txn", describe(res.Responses[i].Range.KVs), want)
		}
		same(f, "read in the nested Txn", describe(res.Responses[4].Txn.Responses[1].Range.KVs),
			[]string{"b=2 m3 c2 v2", "c=1 m2 c2 v1"})
		equal(f, "revision before the first change", res.Responses[0].Range.Revision, 2)
		equal(f, "revision after it", res.Responses[2].Range.Revision, 3)
		equal(f, "count", res.Responses[7].Range.Count, 2)
		equal(f, "count with a limit", res.Responses[8].Range.Count, 2)
		equal(f, "more", res.Responses[8].Range.More, true)
	}},
	{name: "SingleReadsInATxn", run: func(f *fixture) {
		f.put("a", "1")
		f.put("a", "2")
		f.compact(2)
		res := f.txn(ops(
			read(sqlstore.RangeRequest{KeyRange: single("a"), Fields: sqlstore.KeyFields}),
			read(sqlstore.RangeRequest{KeyRange: single("a"), Fields: sqlstore.NoFields}),
			read(sqlstore.RangeRequest{KeyRange: single("a"), Revision: 2}),
			read(sqlstore.RangeRequest{KeyRange: single("a"), MaxModRevision: 2}),
		))
		same(f, "keys only", describe(res.Responses[0].Range.KVs), []string{"a= m3 c2 v2"})
		same(f, "count only", describe(res.Responses[1].Range.KVs), nil)
		equal(f, "count", res.Responses[1].Range.Count, 1)
		same(f, "old revision", describe(res.Responses[2].Range.KVs), []string{"a=1 m2 c2 v1"})
		same(f, "bound", describe(res.Responses[3].Range.KVs), nil)
		equal(f, "count outside the bound", res.Responses[3].Range.Count, 1)
		r := ops(put("b", "1"), read(sqlstore.RangeRequest{KeyRange: single("a"), Revision: 1}))
		_, err := f.Txn(f.ctx, &r)
		f.fails(err, sqlstore.ErrCompacted)
		equal(f, "revision afterwards", f.current(), 3)
	}},
	{name: "ValuesAreBytes_I6", run: func(f *fixture) {
		var all [256]byte
		for i := range all {
			all[i] = byte(i)
		}
		values := map[string][]byte{"empty": {}, "nil": nil, "all": all[:], "large": bytes.Repeat(all[:], 4096)}
		for key, value := range values {
			f.put(key, string(value))
		}
		f.reopen()
		for key, value := range values {
			kvs := f.rangeOf(sqlstore.RangeRequest{KeyRange: single(key)}).KVs
			if len(kvs) != 1 || !bytes.Equal(kvs[0].Value, value) {
				f.Errorf("value %s is not what was put", key)
			}
		}
	}},
	{name: "ManyChangesInOneTxn_I3", run: func(f *fixture) {
		const n = 3000
		list := make([]sqlstore.Op, n)
		for i := range list {
			list[i] = put(strings.Repeat("k", 1+i%7)+string(rune('a'+i%13))+string(rune('0'+i)), "v")
		}
		equal(f, "revision", f.txn(ops(list...)).Revision, 2)
		equal(f, "keys", f.rangeOf(sqlstore.RangeRequest{KeyRange: everything, Fields: sqlstore.NoFields}).Count, n)
		equal(f, "deleted", f.delete(everything).Deleted, n)
		equal(f, "rows", len(f.stored()), 2*n)
	}},
}

func duplicateKeys(f *fixture) {
	both := func(success, failure sqlstore.Op) sqlstore.Op {
		return nested(sqlstore.TxnRequest{Success: []sqlstore.Op{success}, Failure: []sqlstore.Op{failure}})
	}
	one, deletion := put("a", "1"), del(single("a"))
	for _, c := range []struct {
		name      string
		r         sqlstore.TxnRequest
		duplicate bool
	}{
		{"put twice", ops(one, one), true},
		{"put twice when the comparison fails", sqlstore.TxnRequest{Failure: []sqlstore.Op{one, one}}, true},
		{"put and delete", ops(one, deletion), true},
		{"delete and put", ops(deletion, one), true},
		{"put and delete of a range over it", ops(one, del(span("A", "b"))), true},
		{"put and delete from a key on, which etcd overlooks", ops(one, del(fromKey("0"))), false},
		{"put and delete of a range up to it", ops(one, del(span("A", "a"))), false},
		{"delete twice", ops(deletion, del(prefix("a"))), false},
		{"put and put below", ops(one, nested(ops(one))), true},
		{"delete and put below", ops(nested(ops(one)), deletion), true},
		{"put and delete below", ops(one, nested(ops(deletion))), true},
		{"put in both branches", ops(both(one, one)), false},
		{"put and delete in the two branches", ops(both(one, deletion)), false},
		{"put in both branches and beside them", ops(both(one, one), one), true},
		{"put in two nested Txns", ops(nested(ops(one)), both(put("b", "1"), one)), true},
		{"delete in a nested Txn, put in a later one", ops(nested(ops(deletion)), nested(ops(one))), true},
		{"put in a nested Txn, delete in a later one", ops(nested(ops(one)), nested(ops(deletion))), false},
		{"put two below", ops(one, nested(ops(nested(ops(one))))), true},
		{"different keys", ops(one, put("b", "1"), nested(ops(put("c", "1")))), false},
	} {
		before := f.current()
		_, err := f.Txn(f.ctx, &c.r)
		if c.duplicate {
			f.Logf("duplicate: %s", c.name)
			f.fails(err, sqlstore.ErrDuplicateKey)
			equal(f, "revision afterwards", f.current(), before)
		} else if err != nil {
			f.Errorf("%s: %v", c.name, err)
		}
		equal(f, c.name+": the rule in other words", ChangesTwice(&c.r), c.duplicate)
	}
}
