package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// request is one unit of work for the committer.
type request struct {
	ctx   context.Context
	keys  [][]byte                                  // to be loaded before apply
	apply func(ctx context.Context, b *batch) error // runs in the committer; its answer is valid once done yields nil
	done  chan error
}

const (
	// A batch is what waits, up to this many requests: enough that one fsync serves all writers of a busy API server,
	// and few enough that the first of them does not wait long.
	maxBatchRequests = 256
	// Requests queue in this channel; a sender waits when it is full.
	queueLength = 1024
	// How long the store tries to learn the outcome of a commit whose connection was lost.
	outcomeTimeout = 10 * time.Second
)

// do queues a request and waits for its batch to commit. Once queued it runs whatever becomes of ctx, as a write in etcd does,
// but the caller stops waiting.
func (s *Store) do(ctx context.Context, keys [][]byte, apply func(ctx context.Context, b *batch) error) error {
	r := &request{ctx: ctx, keys: keys, apply: apply, done: make(chan error, 1)}
	select {
	case s.queue <- r:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closing:
		return ErrClosed
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-s.committerDone:
		select {
		case err := <-r.done: // answered just before
			return err
		default:
			return ErrClosed
		}
	}
}

// Txn runs a transaction. Errors: ErrDuplicateKey, ErrCompacted, ErrFutureRevision, ErrKeyNotFound, ErrLeaseNotFound,
// ErrTooManyChanges, ErrAuthChanged, ErrKeyTooLong, ErrNoSpace, ErrUnavailable: nothing was done; ErrOutcomeUnknown or an error of ctx:
// it may have been.
func (s *Store) Txn(ctx context.Context, r *TxnRequest) (*TxnResult, error) {
	if err := CheckChanges(r); err != nil {
		return nil, err
	}
	var res *TxnResult
	err := s.do(ctx, r.keys(nil), func(ctx context.Context, b *batch) (err error) {
		if r.AuthGeneration != 0 && r.AuthGeneration != b.meta.AuthGeneration {
			return ErrAuthChanged
		}
		res, err = evaluation{ctx, b}.run(r)
		return err
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// commitLoop is the committer: while one batch commits the next one collects (group commit without a timer).
func (s *Store) commitLoop() {
	defer close(s.committerDone)
	for {
		select {
		case <-s.closing:
			return
		case first := <-s.queue:
			s.commitBatch(s.collect(first))
		}
	}
}

// collect takes what waits, in order.
func (s *Store) collect(first *request) []*request {
	requests := []*request{first}
	for len(requests) < maxBatchRequests {
		select {
		case r := <-s.queue:
			requests = append(requests, r)
		default:
			return requests
		}
	}
	return requests
}

// commitBatch runs requests as one transaction. If that fails because of the database and is known to have done nothing, each
// request is tried alone, so that one that cannot succeed fails alone.
func (s *Store) commitBatch(requests []*request) {
	err := s.tryBatch(requests)
	s.outage.saw(err)
	if err == nil {
		return
	}
	if len(requests) > 1 && !errors.Is(err, ErrOutcomeUnknown) && !errors.Is(err, ErrUnavailable) {
		for _, r := range requests {
			s.commitBatch([]*request{r})
		}
		return
	}
	for _, r := range requests {
		r.done <- err
	}
}

// tryBatch answers every request, or none when it returns an error.
func (s *Store) tryBatch(requests []*request) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.opts.WriteTimeout)
	defer cancel()
	var keys [][]byte
	for _, r := range requests {
		keys = append(keys, r.keys...)
	}
	tx, rows, err := s.engine.Begin(ctx, keys)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	began := tx.Meta()
	b := newBatch(tx, keys, rows)

	answers := make([]error, len(requests))
	for i, r := range requests {
		if answers[i] = r.ctx.Err(); answers[i] != nil {
			continue // nobody waits for it any more and it did not begin
		}
		if answers[i] = r.apply(ctx, b); answers[i] != nil {
			if !answered(answers[i]) || !b.clean() {
				return answers[i] // of the database, not of the request
			}
			continue
		}
		b.end()
	}
	if b.changed() {
		committing := time.Now()
		if err := s.commit(ctx, b); err != nil {
			return err
		}
		if s.notifications != nil {
			s.notifications.commit(committing)
		}
	} else {
		tx.Rollback()
	}
	s.hub.committed(began.CurrentRevision, b.events, b.meta)
	for i, r := range requests {
		r.done <- answers[i]
	}
	return nil
}

// commit commits and, when the connection is lost while it does, finds out what happened.
func (s *Store) commit(ctx context.Context, b *batch) error {
	err := b.tx.Commit(ctx, b.unsent, b.meta)
	if !errors.Is(err, ErrOutcomeUnknown) {
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx, outcomeTimeout)
	defer cancel()
	for {
		committed, rerr := b.tx.Committed(ctx)
		switch {
		case rerr == nil && committed:
			return nil
		case rerr == nil:
			return fmt.Errorf("%w: connection lost in COMMIT, nothing was written", ErrUnavailable)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(s.opts.RetryInterval):
		}
	}
}

// answered says whether err is an answer to the request rather than a failure of the database.
func answered(err error) bool {
	for _, answer := range []error{
		ErrCompacted, ErrFutureRevision, ErrKeyNotFound, ErrLeaseNotFound, ErrLeaseExists, ErrTooManyChanges, ErrAuthChanged,
	} {
		if errors.Is(err, answer) {
			return true
		}
	}
	return false
}
