package sqlstore

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// lessor counts leases down. A lease is a row with a TTL and a count of keepalives; when it ends is known only in memory and on
// the monotonic clock: TTL after this process saw the lease, or its count of keepalives change. So neither a clock step nor
// a restart expires anything early, and with several processes none expires what another one renewed.
type lessor struct {
	store *Store

	mu     sync.Mutex // guards leases; nothing else is held with it
	leases map[LeaseID]*countdown
	wake   chan struct{}
}

type countdown struct {
	Lease
	deadline time.Time // monotonic
}

func newLessor(s *Store) *lessor {
	return &lessor{store: s, leases: map[LeaseID]*countdown{}, wake: make(chan struct{}, 1)}
}

// LeaseInfo is a lease as LeaseTimeToLive answers it.
type LeaseInfo struct {
	ID        LeaseID
	TTL       int64         // seconds, as granted
	Remaining time.Duration // not below 0
}

// LeaseGrant makes a lease of at least MinLeaseTTL seconds; id 0 lets the store choose. Errors: ErrLeaseExists.
func (s *Store) LeaseGrant(ctx context.Context, id LeaseID, ttl int64) (LeaseInfo, error) {
	l := Lease{ID: id, TTL: max(ttl, s.opts.MinLeaseTTL), Keepalives: rand.Int64N(1 << 62)}
	err := s.do(ctx, nil, func(ctx context.Context, b *batch) error {
		if id == 0 {
			l.ID = LeaseID(rand.Int64N(1<<63-1) + 1)
		}
		switch _, err := b.lease(ctx, l.ID); {
		case err == nil:
			return ErrLeaseExists
		case !isLeaseNotFound(err):
			return err
		}
		return b.putLease(ctx, l)
	})
	if err != nil {
		return LeaseInfo{}, err
	}
	s.lessor.saw(l)
	return LeaseInfo{ID: l.ID, TTL: l.TTL, Remaining: time.Duration(l.TTL) * time.Second}, nil
}

// LeaseRevoke ends a lease and deletes its keys, as one revision. Errors: ErrLeaseNotFound.
func (s *Store) LeaseRevoke(ctx context.Context, id LeaseID) (Revision, error) {
	var revision Revision
	var l Lease
	err := s.do(ctx, nil, func(ctx context.Context, b *batch) (err error) {
		if l, err = b.lease(ctx, id); err != nil {
			return err
		}
		err = b.deleteLease(ctx, id)
		revision = b.revision()
		return err
	})
	if err == nil {
		s.lessor.forget(l)
	}
	return revision, err
}

// LeaseKeepAlive lets a lease count down from its TTL again. Errors: ErrLeaseNotFound.
func (s *Store) LeaseKeepAlive(ctx context.Context, id LeaseID) (LeaseInfo, error) {
	var l Lease
	err := s.do(ctx, nil, func(ctx context.Context, b *batch) (err error) {
		if l, err = b.lease(ctx, id); err != nil {
			return err
		}
		l.Keepalives++
		return b.putLease(ctx, l)
	})
	if err != nil {
		return LeaseInfo{}, err
	}
	s.lessor.saw(l)
	return LeaseInfo{ID: id, TTL: l.TTL, Remaining: time.Duration(l.TTL) * time.Second}, nil
}

// LeaseTimeToLive says how long a lease has. Errors: ErrLeaseNotFound.
func (s *Store) LeaseTimeToLive(ctx context.Context, id LeaseID, withKeys bool) (LeaseInfo, [][]byte, error) {
	if err := s.lessor.load(ctx); err != nil {
		return LeaseInfo{}, nil, err
	}
	info, ok := s.lessor.info(id)
	if !ok {
		return LeaseInfo{}, nil, ErrLeaseNotFound
	}
	if !withKeys {
		return info, nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.ReadTimeout)
	defer cancel()
	keys, err := s.engine.LeaseKeys(ctx, id)
	return info, keys, err
}

// LeaseList lists the ids of all leases; the one that ends first comes first.
func (s *Store) LeaseList(ctx context.Context) ([]LeaseID, error) {
	if err := s.lessor.load(ctx); err != nil {
		return nil, err
	}
	return s.lessor.ids(), nil
}

// saw starts or restarts the countdown of a lease whose count of keepalives is new to this process.
func (l *lessor) saw(lease Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.leases[lease.ID]; ok && known.Lease == lease {
		return
	}
	l.leases[lease.ID] = &countdown{Lease: lease, deadline: time.Now().Add(time.Duration(lease.TTL) * time.Second)}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// forget ends the countdown of a lease that is gone, unless one with its id was granted since.
func (l *lessor) forget(lease Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c, ok := l.leases[lease.ID]; ok && c.Lease == lease {
		delete(l.leases, lease.ID)
	}
}

func (l *lessor) info(id LeaseID) (LeaseInfo, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, ok := l.leases[id]
	if !ok {
		return LeaseInfo{}, false
	}
	return LeaseInfo{ID: id, TTL: c.TTL, Remaining: max(0, time.Until(c.deadline))}, true
}

func (l *lessor) ids() []LeaseID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Keys(l.leases), func(a, b LeaseID) int {
		return cmp.Or(l.leases[a].deadline.Compare(l.leases[b].deadline), cmp.Compare(a, b))
	})
}

// load brings what this process knows of the leases up to date with the database.
func (l *lessor) load(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.store.opts.ReadTimeout)
	defer cancel()
	l.mu.Lock()
	before := make(map[LeaseID]Lease, len(l.leases))
	for id, c := range l.leases {
		before[id] = c.Lease
	}
	l.mu.Unlock()
	stored, err := l.store.engine.Leases(ctx)
	l.store.outage.saw(err)
	if err != nil {
		return err
	}
	for _, lease := range stored {
		l.saw(lease)
		delete(before, lease.ID)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, lease := range before {
		// Gone since, unless it was granted or renewed while the database was read.
		if c, ok := l.leases[id]; ok && c.Lease == lease {
			delete(l.leases, id)
		}
	}
	return nil
}

// due returns the leases that have run out, and when the next one will.
func (l *lessor) due(now time.Time) (due []Lease, next time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next = now.Add(leasePoll)
	for _, c := range l.leases {
		if !c.deadline.After(now) {
			due = append(due, c.Lease)
		} else if c.deadline.Before(next) {
			next = c.deadline
		}
	}
	return due, next
}

// leasePoll is how often leases granted or renewed by other processes are looked for: well under the shortest TTL in use, and
// rarely enough to cost nothing.
const leasePoll = 5 * time.Second

// expireLoop revokes leases that have run out.
func (l *lessor) expireLoop(ctx context.Context) {
	for {
		due, next := l.due(time.Now())
		for _, lease := range due {
			if err := l.expire(ctx, lease); err != nil {
				l.store.outage.retrying(err, "could not expire a lease", "lease", lease.ID)
				next = time.Now().Add(l.store.opts.RetryInterval)
			}
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-l.wake:
			timer.Stop()
			continue
		case <-timer.C:
		}
		if l.store.engine.Shared() {
			if err := l.load(ctx); err != nil && ctx.Err() == nil {
				l.store.outage.retrying(err, "could not read the leases")
			}
		}
	}
}

// expire revokes a lease, unless it was renewed elsewhere: then it counts down again.
func (l *lessor) expire(ctx context.Context, lease Lease) error {
	var stored Lease
	err := l.store.do(ctx, nil, func(ctx context.Context, b *batch) (err error) {
		if stored, err = b.lease(ctx, lease.ID); err != nil {
			return err
		}
		if stored != lease {
			return nil
		}
		return b.deleteLease(ctx, lease.ID)
	})
	switch {
	case isLeaseNotFound(err), err == nil && stored == lease:
		l.forget(lease)
		return nil
	case err == nil:
		l.saw(stored)
	}
	return err
}
