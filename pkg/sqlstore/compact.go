package sqlstore

import (
	"context"
	"time"
)

// Compact stores that history below a revision is no longer readable and returns; rows are deleted afterwards in the background.
// Errors: ErrCompacted if it is compacted already, ErrFutureRevision.
func (s *Store) Compact(ctx context.Context, revision Revision) (Revision, error) {
	var current Revision
	err := s.do(ctx, nil, func(_ context.Context, b *batch) error {
		current = b.meta.CurrentRevision
		switch {
		case revision <= b.meta.CompactRevision:
			return &CompactedError{CompactRevision: b.meta.CompactRevision}
		case revision > b.meta.CurrentRevision:
			return ErrFutureRevision
		}
		b.meta.CompactRevision = revision // I5: stored here, before any row goes
		b.dirty = true
		return nil
	})
	if err == nil {
		s.compactor.start()
	}
	return current, err
}

// CompactPhysically compacts and waits until the rows are deleted.
func (s *Store) CompactPhysically(ctx context.Context, revision Revision) (Revision, error) {
	current, err := s.Compact(ctx, revision)
	if err != nil {
		return current, err
	}
	return current, s.compactor.wait(ctx)
}

// compactor deletes dead history in slices, from a cursor that the database keeps. It never gives up: a slice that fails is tried
// again later.
type compactor struct {
	store *Store
	kick  chan struct{}
	idle  chan chan struct{} // callers that wait for the end of the work
}

func newCompactor(s *Store) *compactor {
	return &compactor{store: s, kick: make(chan struct{}, 1), idle: make(chan chan struct{})}
}

func (c *compactor) start() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// wait returns when everything that was to be deleted at the time of the call is.
func (c *compactor) wait(ctx context.Context) error {
	reached := make(chan struct{})
	select {
	case c.idle <- reached:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.store.closing:
		return ErrClosed
	}
	select {
	case <-reached:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.store.closing:
		return ErrClosed
	}
}

const (
	// A slice is sized so that it takes about this long: short enough that writers hardly notice it.
	sliceTime    = 20 * time.Millisecond
	firstSlice   = 100
	largestSlice = 10_000
	// Work that another process on the database left undone is looked for this often: one read.
	takeOverInterval = 10 * time.Second
)

// loop works off the backlog that it finds at the start, and after each Compact. Between slices it leaves the database to the
// writers for as long as the slice took.
func (c *compactor) loop(ctx context.Context) {
	slice := firstSlice
	var waiting []chan struct{}
	for {
		began := time.Now()
		done, err := c.deleteSlice(ctx, slice)
		took := time.Since(began)
		pause := took
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.store.outage.retrying(err, "compaction was interrupted")
			slice = max(slice/2, 1)
			pause = c.store.opts.RetryInterval
		case took < sliceTime/2:
			slice = min(slice*2, largestSlice)
		case took > sliceTime*2:
			slice = max(slice/2, 1)
		}
		if err == nil && done {
			for _, w := range waiting {
				close(w)
			}
			waiting = nil
			select {
			case <-ctx.Done():
				return
			case <-c.kick:
			case w := <-c.idle:
				waiting = append(waiting, w)
			case <-c.takeOver():
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case w := <-c.idle:
			waiting = append(waiting, w)
		case <-time.After(pause):
		}
	}
}

// takeOver ticks when it is time to look for work that another process left undone; never if there is no other process.
func (c *compactor) takeOver() <-chan time.Time {
	if !c.store.engine.Shared() {
		return nil
	}
	return time.After(takeOverInterval)
}

func (c *compactor) deleteSlice(ctx context.Context, slice int) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.store.opts.WriteTimeout)
	defer cancel()
	done, err := c.store.engine.DeleteHistory(ctx, slice)
	c.store.outage.saw(err)
	return done, err
}

// Defragment gives free space back: how much, and to whom, is the engine's.
func (s *Store) Defragment(ctx context.Context) error { return s.engine.Defragment(ctx) }
