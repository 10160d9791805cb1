package sqlstore

import (
	"context"
	"sync/atomic"
	"time"
)

// notifications learns that other processes have committed. Notifications of the database come at once, but may be lost, or never come
// at all behind a connection pooler; so it also asks, rarely while notifications are known to arrive, else more often the more there is
// to hear (I7).
type notifications struct {
	store *Store
	// When this process last committed and last got a notification, in nanoseconds since began: each commit of ours must be
	// followed by a notification, or we are deaf.
	began     time.Time
	committed atomic.Int64
	notified  atomic.Int64
}

const (
	// A deaf store asks this often while there is something to hear, and half as often each time there is nothing.
	fastestPoll = 10 * time.Millisecond
	// A notification may come this long after its commit.
	notificationDelay = time.Second
)

func newNotifications(s *Store) *notifications { return &notifications{store: s, began: time.Now()} }

// commit notes a commit of ours that began at a time: its notification may come before this call.
func (n *notifications) commit(began time.Time) { n.committed.Store(int64(began.Sub(n.began))) }

// deaf says whether no notification came although one should have.
func (n *notifications) deaf() bool {
	committed, notified := n.committed.Load(), n.notified.Load()
	if notified == 0 && committed == 0 {
		return true // nothing is known yet
	}
	return committed > notified && time.Since(n.began)-time.Duration(committed) > notificationDelay
}

// listenLoop keeps listening.
func (n *notifications) listenLoop(ctx context.Context) {
	lost := false
	for ctx.Err() == nil {
		err := n.store.engine.Listen(ctx, func(notified bool) {
			lost = false
			if notified {
				n.notified.Store(int64(time.Since(n.began)))
			}
			n.store.hub.refresh()
		})
		if ctx.Err() != nil {
			return
		}
		if !lost {
			n.store.log.Warn("notifications of the database are interrupted, polling meanwhile", "error", err)
			lost = true
		}
		n.notified.Store(0)
		n.committed.Store(0)
		n.store.pause(ctx)
	}
}

// pollLoop asks for what no notification told.
func (n *notifications) pollLoop(ctx context.Context) {
	interval := fastestPoll
	seen := n.store.hub.reached()
	for {
		timer := time.NewTimer(interval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		n.store.hub.refresh()
		reached := n.store.hub.reached()
		switch {
		case !n.deaf():
			interval = n.store.opts.PollInterval
		case reached > seen:
			interval = fastestPoll
		default:
			interval = min(interval*2, n.store.opts.PollInterval)
		}
		seen = reached
	}
}
