package storetest

import (
	"slices"
	"time"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// short lets leases of a second be granted.
var short = sqlstore.Options{MinLeaseTTL: 1}

var leaseCases = []testCase{
	{name: "Grant", run: func(f *fixture) {
		info, err := f.LeaseGrant(f.ctx, 7, 100)
		f.must(err)
		equal(f, "lease", info, sqlstore.LeaseInfo{ID: 7, TTL: 100, Remaining: 100 * time.Second})
		_, err = f.LeaseGrant(f.ctx, 7, 100)
		f.fails(err, sqlstore.ErrLeaseExists)
		info, err = f.LeaseGrant(f.ctx, 8, 1)
		f.must(err)
		equal(f, "shortest TTL", info.TTL, 2)
		a, err := f.LeaseGrant(f.ctx, 0, 100)
		f.must(err)
		b, err := f.LeaseGrant(f.ctx, 0, 100)
		f.must(err)
		if a.ID <= 0 || b.ID <= 0 || a.ID == b.ID {
			f.Errorf("chosen ids are %d and %d", a.ID, b.ID)
		}
		f.leases(7, 8, a.ID, b.ID)
		equal(f, "I1: revision", f.current(), 1)
	}},
	{name: "RevokeDeletesAllKeysInOneRevision", run: func(f *fixture) {
		f.grant(7, 100)
		f.grant(8, 100)
		f.txn(ops(putLeased("b", "1", 7), putLeased("a", "1", 7), putLeased("c", "1", 8), putLeased("d", "1", 7)))
		f.put("d", "2") // takes the lease off
		w := f.stream().watch(sqlstore.WatchRequest{KeyRange: everything})
		revision, err := f.LeaseRevoke(f.ctx, 7)
		f.must(err)
		equal(f, "revision", revision, 4)
		w.expect("delete a= m4 c0 v0, was a=1 m2 c2 v1 l7", "delete b= m4 c0 v0, was b=1 m2 c2 v1 l7")
		same(f, "keys", f.list(everything, 0), []string{"c=1 m2 c2 v1 l8", "d=2 m3 c2 v2"})
		f.leases(8)
		_, err = f.LeaseRevoke(f.ctx, 7)
		f.fails(err, sqlstore.ErrLeaseNotFound)
		_, err = f.LeaseKeepAlive(f.ctx, 7)
		f.fails(err, sqlstore.ErrLeaseNotFound)
		_, _, err = f.LeaseTimeToLive(f.ctx, 7, true)
		f.fails(err, sqlstore.ErrLeaseNotFound)
		r := ops(putLeased("a", "1", 7))
		_, err = f.Txn(f.ctx, &r)
		f.fails(err, sqlstore.ErrLeaseNotFound)
	}},
	{name: "RevokeWithoutKeysTakesNoRevision_I1", run: func(f *fixture) {
		f.grant(7, 100)
		f.put("a", "1")
		revision, err := f.LeaseRevoke(f.ctx, 7)
		f.must(err)
		equal(f, "revision", revision, 2)
		equal(f, "current revision", f.current(), 2)
		f.grant(7, 50) // the id is free again
		info, _, err := f.LeaseTimeToLive(f.ctx, 7, false)
		f.must(err)
		equal(f, "TTL", info.TTL, 50)
	}},
	{name: "TimeToLive", run: func(f *fixture) {
		f.grant(7, 100)
		f.txn(ops(putLeased("b", "1", 7), putLeased("a", "1", 7)))
		info, keys, err := f.LeaseTimeToLive(f.ctx, 7, true)
		f.must(err)
		equal(f, "TTL", info.TTL, 100)
		if info.Remaining <= 50*time.Second || info.Remaining > 100*time.Second {
			f.Errorf("remaining: %v", info.Remaining)
		}
		equal(f, "keys", string(slices.Concat(keys...)), "ab")
		_, keys, err = f.LeaseTimeToLive(f.ctx, 7, false)
		f.must(err)
		equal(f, "keys not asked for", len(keys), 0)
	}},
	{name: "ExpiryDeletesAllKeysInOneRevision", options: short, run: func(f *fixture) {
		f.grant(7, 1)
		f.txn(ops(putLeased("a", "1", 7), putLeased("b", "1", 7), put("c", "1")))
		w := f.stream().watch(sqlstore.WatchRequest{KeyRange: everything})
		w.wait(2)
		w.expect("delete a= m3 c0 v0, was a=1 m2 c2 v1 l7", "delete b= m3 c0 v0, was b=1 m2 c2 v1 l7")
		f.leases()
	}},
	{name: "KeepAlivePostponesExpiry", options: short, run: func(f *fixture) {
		f.grant(7, 1)
		f.grant(8, 1)
		f.txn(ops(putLeased("kept", "1", 7), putLeased("left", "1", 8)))
		w := f.stream().watch(sqlstore.WatchRequest{KeyRange: everything})
		expired := make(chan struct{})
		renewing := make(chan error, 1)
		go func() {
			ticker := time.NewTicker(100 * time.Millisecond)
			defer ticker.Stop()
			for {
				select {
				case <-expired:
					renewing <- nil
					return
				case <-ticker.C:
					if _, err := f.LeaseKeepAlive(f.ctx, 7); err != nil {
						renewing <- err
						return
					}
				}
			}
		}()
		w.wait(1)
		close(expired)
		f.must(<-renewing)
		w.expect("delete left= m3 c0 v0, was left=1 m2 c2 v1 l8")
		w.wait(1) // once it is not renewed any more
		w.expect("delete kept= m4 c0 v0, was kept=1 m2 c2 v1 l7")
	}},
	{name: "CountsDownAgainAfterReopen", options: short, run: func(f *fixture) {
		f.grant(7, 1)
		f.grant(8, 100)
		f.txn(ops(putLeased("a", "1", 7), putLeased("b", "1", 8)))
		f.reopen()
		w := f.stream().watch(sqlstore.WatchRequest{KeyRange: everything, From: 3})
		info, _, err := f.LeaseTimeToLive(f.ctx, 8, false)
		f.must(err)
		equal(f, "TTL", info.TTL, 100)
		w.wait(1)
		w.expect("delete a= m3 c0 v0, was a=1 m2 c2 v1 l7")
		f.leases(8)
	}},
	{name: "GrantedAgainIsAnotherLease", run: func(f *fixture) {
		// Another server that counts the first one down must not take the second for it, and expire it early.
		f.grant(7, 100)
		before := f.storedLeases()
		_, err := f.LeaseRevoke(f.ctx, 7)
		f.must(err)
		f.grant(7, 100)
		if after := f.storedLeases(); len(after) != 1 || slices.Equal(after, before) {
			f.Errorf("the leases were %v and are %v", before, after)
		}
	}},
	{name: "PutMovesAKeyToAnotherLease", run: func(f *fixture) {
		f.grant(7, 100)
		f.grant(8, 100)
		f.txn(ops(putLeased("a", "1", 7)))
		f.txn(ops(putLeased("a", "2", 8)))
		_, err := f.LeaseRevoke(f.ctx, 7)
		f.must(err)
		same(f, "key", f.list(single("a"), 0), []string{"a=2 m3 c2 v2 l8"})
		_, err = f.LeaseRevoke(f.ctx, 8)
		f.must(err)
		same(f, "key", f.list(single("a"), 0), nil)
	}},
}

// storedLeases are the leases as they are stored.
func (f *fixture) storedLeases() []sqlstore.Lease {
	f.Helper()
	leases, err := f.engine.Leases(f.ctx)
	f.must(err)
	return leases
}

// leases checks which leases there are.
func (f *fixture) leases(want ...sqlstore.LeaseID) {
	f.Helper()
	got, err := f.LeaseList(f.ctx)
	f.must(err)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		f.Fatalf("leases: got %v, want %v", got, want)
	}
}
