package robustness

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	leasedPrefix = root + "leased/"
	leasedKeys   = 2
	leaseTTL     = 2 // seconds, the least there is
)

// leased is the keys of a lease, which go with it, and only when it is over.
type leased struct {
	client   int
	keys     []string
	earliest int64 // when it can be over, on the test's clock
}

// lease attaches keys to a lease, now and then renews it once, and then leaves it alone.
func (c *client) lease() {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	granted := c.clock()
	res, err := c.Client.Client.Grant(ctx, leaseTTL)
	if err != nil {
		return
	}
	var keys []string
	for i := range leasedKeys {
		keys = append(keys, fmt.Sprintf("%s%d-%d-%d", leasedPrefix, c.id, c.written, i))
	}
	c.putAll(keys, clientv3.WithLease(res.ID))
	if c.rand.IntN(2) == 0 {
		renewed := c.clock()
		if _, err := c.Client.Client.KeepAliveOnce(ctx, res.ID); err == nil {
			granted = renewed
		}
	}
	c.recorder.addLease(leased{c.id, keys, granted + res.TTL*int64(time.Second)})
	c.leased = append(c.leased, keys...)
}

// withExpiries adds to a history what the ends of leases may have done: as writes of unknown outcome that nobody called before the lease
// could be over.
func withExpiries(h *history, l *changelog) *history {
	more := *h
	more.operations = slices.Clone(h.operations)
	for _, lease := range h.leases {
		o := operation{client: lease.client, kind: txn, compare: true, call: lease.earliest, done: lease.earliest, outcome: unknown}
		for _, key := range lease.keys {
			if changes := l.byKey[key]; len(changes) > 0 {
				o.expect = changes[0].revision // the put
				o.writes = append(o.writes, write{key, ""})
			}
		}
		more.operations = append(more.operations, o)
	}
	return &more
}

// checkLeases checks that the keys of a lease come in one revision, and go in one.
func checkLeases(h *history, l *changelog) (errs []error) {
	for _, lease := range h.leases {
		var first []int64
		for i, key := range lease.keys {
			var revisions []int64
			for _, c := range l.byKey[key] {
				revisions = append(revisions, c.revision)
			}
			if i == 0 {
				first = revisions
			} else if !slices.Equal(revisions, first) {
				errs = append(errs, fmt.Errorf("I3: keys of one lease, %s and %s, changed at revisions %d and %d", lease.keys[0], key, first, revisions))
			}
		}
	}
	return errs
}

// TestCheckerKnowsLeases has a lease end in the sound history, and doctors it.
func TestCheckerKnowsLeases(t *testing.T) {
	run := func(doctor func(l *leased, changes []change)) (errs []error) {
		h, changes := sample()
		lease := leased{1, []string{"/p/m0", "/p/m1"}, 150}
		for i := range 2 {
			end := change{7, lease.keys[i], version{}, changes[4+i].after}
			changes = append(changes, end)
		}
		h.watches[0].responses = append(h.watches[0].responses, response{190, 7, slices.Clone(changes[6:])})
		h.operations = append(h.operations, operation{client: 2, kind: get, call: 180, done: 185, key: "/p/m0", revision: 7, looked: true})
		if doctor != nil {
			doctor(&lease, changes)
		}
		h.leases = []leased{lease}
		return check(h, newLog(changes), t.TempDir())
	}
	for _, err := range run(nil) {
		t.Error(err)
	}
	for name, c := range map[string]struct {
		doctor func(l *leased, changes []change)
		want   string
	}{
		"ends too early":   {func(l *leased, _ []change) { l.earliest = 187 }, "not linearizable"},
		"ends by halves":   {func(_ *leased, changes []change) { changes[7].revision = 8 }, "I3: keys of one lease"},
		"not that lease's": {func(l *leased, _ []change) { l.keys[1] = "/p/other" }, "nobody who asked"},
	} {
		errs := run(c.doctor)
		if !slices.ContainsFunc(errs, func(err error) bool { return strings.Contains(err.Error(), c.want) }) {
			t.Errorf("%s: got %v, want %q", name, errs, c.want)
		}
	}
}
