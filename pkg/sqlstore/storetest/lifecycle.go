package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"

	"github.com/kubase/kubase/pkg/sqlstore"
)

var lifecycleCases = []testCase{
	{name: "ReopenFindsEverything_I9", run: func(f *fixture) {
		f.grant(7, 100)
		f.txn(ops(put("a", "1"), putLeased("b", "1", 7)))
		f.put("a", "2")
		f.delete(single("b"))
		f.txn(ops(putLeased("b", "2", 7)))
		f.compact(3)
		id, now := f.ClusterID(), f.list(everything, 0)
		if id == 0 {
			f.Error("the cluster id is 0")
		}
		f.reopen()
		equal(f, "cluster id", f.ClusterID(), id)
		equal(f, "revision", f.current(), 5)
		same(f, "keys", f.list(everything, 0), now)
		same(f, "keys before", f.list(everything, 3), []string{"a=2 m3 c2 v2", "b=1 m2 c2 v1 l7"})
		_, err := f.Range(f.ctx, &sqlstore.RangeRequest{KeyRange: everything, Revision: 2})
		f.fails(err, sqlstore.ErrCompacted)
		f.leases(7)
		equal(f, "next revision", f.put("c", "1"), 6)
	}},
	{name: "ClusterIDsDiffer", run: func(f *fixture) {
		// 1 of 2^60 that they do not.
		equal(f, "bit that keeps it from being 0", f.ClusterID()&1, 1)
		if f.ClusterID() < 1<<20 {
			f.Errorf("cluster id %d is not random", f.ClusterID())
		}
	}},
	{name: "ConcurrentIncrementsAreNotLost_I1", run: concurrentIncrements},
	{name: "HalfDoneTxnFailsAlone_I1", run: halfDone},
	{name: "CloseWhileWriting_I9", run: closeWhileWriting},
	{name: "ClosedStore", run: func(f *fixture) {
		f.put("a", "1")
		f.must(f.Close())
		r := ops(put("a", "2"))
		_, err := f.Txn(f.ctx, &r)
		f.fails(err, sqlstore.ErrClosed)
		_, err = f.CompactPhysically(f.ctx, 2)
		f.fails(err, sqlstore.ErrClosed)
		f.must(f.Close()) // again
		f.start()
		same(f, "keys", f.list(everything, 0), []string{"a=1 m2 c2 v1"})
	}},
	{name: "CancelledWriteIsNotBegun", run: func(f *fixture) {
		ctx, cancel := context.WithCancel(f.ctx)
		cancel()
		r := ops(put("a", "1"))
		_, err := f.Txn(ctx, &r)
		f.fails(err, context.Canceled)
		f.put("b", "1")
		same(f, "keys", f.list(everything, 0), []string{"b=1 m2 c2 v1"})
	}},
	{name: "CheckAndSize", run: func(f *fixture) {
		f.must(f.Check(f.ctx))
		value := make([]byte, 100<<10) // random, so that it cannot be compressed
		random := rand.NewChaCha8([32]byte{})
		for i := range 40 {
			_, err := random.Read(value)
			f.must(err)
			f.put(fmt.Sprint(i), string(value))
		}
		total, inUse, err := f.Size(f.ctx)
		f.must(err)
		if inUse > total || total < 40*100<<10 {
			f.Errorf("size %d, in use %d", total, inUse)
		}
	}},
}

// concurrentIncrements lets several writers count in one key by comparing its revision, as clients of etcd do.
func concurrentIncrements(f *fixture) {
	const writers, each = 8, 25
	f.put("n", "0")
	var group sync.WaitGroup
	for range writers {
		group.Go(func() {
			for range each {
				if err := increment(f); err != nil {
					f.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	equal(f, "I1: revision", f.current(), 2+writers*each)
	same(f, "counter", f.list(everything, 0), []string{fmt.Sprintf("n=%d m%d c2 v%d", writers*each, 2+writers*each, 1+writers*each)})
	w := f.stream().watch(sqlstore.WatchRequest{KeyRange: everything, From: 2})
	w.settle()
	for i, e := range w.events {
		equal(f, "I8: counter in the log", string(e.KV.Value), fmt.Sprint(i))
	}
	equal(f, "events", len(w.events), 1+writers*each)
}

func increment(f *fixture) error {
	for {
		res, err := f.Range(f.ctx, &sqlstore.RangeRequest{KeyRange: single("n")})
		if err != nil {
			return err
		}
		if len(res.KVs) != 1 {
			return errors.New("the counter is gone")
		}
		kv := res.KVs[0]
		n, err := strconv.Atoi(string(kv.Value))
		if err != nil {
			return err
		}
		r := ops(put("n", strconv.Itoa(n+1)))
		r.Compare = []sqlstore.Compare{modIs("n", kv.ModRevision)}
		done, err := f.Txn(f.ctx, &r)
		if err != nil || done.Succeeded {
			return err
		}
	}
}

// halfDone lets Txns share batches with ones that fail when they have deleted something already.
func halfDone(f *fixture) {
	const each = 100
	f.put("z", "1")
	var group sync.WaitGroup
	for i := range each {
		group.Go(func() {
			r := ops(put(fmt.Sprint(i), "1"))
			if _, err := f.Txn(f.ctx, &r); err != nil {
				f.Error(err)
			}
		})
		group.Go(func() {
			// Allowed as in etcd, which does not see that a range without end and a put meet.
			r := ops(del(fromKey("y")), sqlstore.Op{Put: &sqlstore.PutRequest{Key: []byte("z"), IgnoreValue: true}})
			if _, err := f.Txn(f.ctx, &r); !errors.Is(err, sqlstore.ErrKeyNotFound) {
				f.Errorf("got %v, want %v", err, sqlstore.ErrKeyNotFound)
			}
		})
	}
	group.Wait()
	equal(f, "I1: revision", f.current(), 2+each)
	same(f, "what was nearly deleted", f.list(single("z"), 0), []string{"z=1 m2 c2 v1"})
}

// closeWhileWriting closes the store under its writers: what was acknowledged is there afterwards, and nothing is half there.
func closeWhileWriting(f *fixture) {
	const writers = 8
	var group sync.WaitGroup
	acknowledged := make([]int, writers)
	begun := make(chan struct{}, writers)
	for i := range writers {
		group.Go(func() {
			for n := 0; ; n++ {
				r := ops(put(fmt.Sprintf("a/%d", i), fmt.Sprint(n)), put(fmt.Sprintf("b/%d", i), fmt.Sprint(n)))
				if _, err := f.Txn(f.ctx, &r); err != nil {
					if !errors.Is(err, sqlstore.ErrClosed) {
						f.Error(err)
					}
					return
				}
				acknowledged[i] = n
				if n == 5 {
					begun <- struct{}{}
				}
			}
		})
	}
	for range writers {
		<-begun
	}
	f.must(f.Close())
	group.Wait()
	f.start()
	for i, n := range acknowledged {
		a := f.rangeOf(sqlstore.RangeRequest{KeyRange: single(fmt.Sprintf("a/%d", i))}).KVs
		b := f.rangeOf(sqlstore.RangeRequest{KeyRange: single(fmt.Sprintf("b/%d", i))}).KVs
		if len(a) != 1 || len(b) != 1 || string(a[0].Value) != string(b[0].Value) {
			f.Fatalf("writer %d: half a Txn: %v, %v", i, describe(a), describe(b))
		}
		// A write that was answered ErrClosed may have been committed just before.
		if found, err := strconv.Atoi(string(a[0].Value)); err != nil || found != n && found != n+1 {
			f.Errorf("I9: writer %d: %d was acknowledged, %q is there (%v)", i, n, a[0].Value, err)
		}
	}
}
