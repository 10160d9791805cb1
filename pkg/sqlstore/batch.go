package sqlstore

import (
	"context"
	"fmt"
)

// batch is one write transaction of the database, in which several requests run one after the other, each seeing what the
// ones before it did. It keeps in memory what it knows about single keys and writes changes out late: when a request needs
// the database to see them, and at the commit.
type batch struct {
	tx      WriteTx
	meta    Meta            // as of the last request that ended
	known   map[string]*Row // live row of a key, nil when it is known not to be there
	leases  map[LeaseID]*Lease
	unsent  []Change // not yet written
	pending []*Event // of the request that runs now
	events  []*Event // of the requests that ended, in order
	dirty   bool     // something other than changes was written
}

func newBatch(tx WriteTx, keys [][]byte, rows []Row) *batch {
	b := &batch{tx: tx, meta: tx.Meta(), known: make(map[string]*Row, len(keys)), leases: map[LeaseID]*Lease{}}
	for _, key := range keys {
		b.known[string(key)] = nil
	}
	for i := range rows {
		b.known[string(rows[i].Key)] = &rows[i]
	}
	return b
}

// next is the revision of the request that runs now, if it changes something.
func (b *batch) next() Revision { return b.meta.CurrentRevision + 1 }

// revision is the revision that the request that runs now has reached.
func (b *batch) revision() Revision {
	if len(b.pending) > 0 {
		return b.next()
	}
	return b.meta.CurrentRevision
}

// get returns the live row of a key, nil if there is none.
func (b *batch) get(ctx context.Context, key []byte) (*Row, error) {
	if row, ok := b.known[string(key)]; ok {
		return row, nil
	}
	rows, err := b.tx.Get(ctx, [][]byte{key})
	if err != nil {
		return nil, err
	}
	var row *Row
	if len(rows) > 0 {
		row = &rows[0]
	}
	b.known[string(key)] = row
	return row, nil
}

// live returns the live rows of a range.
func (b *batch) live(ctx context.Context, r KeyRange) ([]Row, error) {
	if err := b.flush(ctx); err != nil {
		return nil, err
	}
	start, end := r.Span()
	rows, err := b.tx.Range(ctx, RangeQuery{Start: start, End: end})
	return rows.Rows, err
}

// rangeOp answers a range inside a Txn.
func (b *batch) rangeOp(ctx context.Context, r *RangeRequest) (*RangeResult, error) {
	q := r.query()
	var rows RangeRows
	if r.Single() && q.Revision == 0 {
		row, err := b.get(ctx, r.Key)
		if err != nil {
			return nil, err
		}
		if row != nil {
			rows.Count = 1
			if r.Fields != NoFields {
				rows.Rows = []Row{*row}
			}
		}
	} else {
		if err := b.flush(ctx); err != nil {
			return nil, err
		}
		var err error
		if rows, err = b.tx.Range(ctx, q); err != nil {
			return nil, err
		}
	}
	rows.Meta.CurrentRevision = b.revision()
	return r.result(q, rows), nil
}

// change records a put.
func (b *batch) change(kv KeyValue, prev *Row) error {
	if len(b.pending) == MaxChangesPerTxn {
		return fmt.Errorf("%w: at most %d", ErrTooManyChanges, MaxChangesPerTxn)
	}
	c := Change{Row: Row{KeyValue: kv, Sub: int64(len(b.pending))}}
	if prev != nil {
		c.PrevRevision, c.PrevSub = prev.ModRevision, prev.Sub
	}
	event := &Event{KV: kv}
	if prev != nil {
		event.setPrev(&prev.KeyValue, b.pending)
	}
	if kv.Version == 0 {
		event.Type = EventDelete
		b.known[string(kv.Key)] = nil
	} else {
		b.known[string(kv.Key)] = &Row{KeyValue: kv, Sub: c.Sub}
	}
	b.pending = append(b.pending, event)
	b.unsent = append(b.unsent, c)
	return nil
}

// tombstone records the deletion of a live row.
func (b *batch) tombstone(row *Row) error {
	return b.change(KeyValue{Key: row.Key, ModRevision: b.next()}, row)
}

// lease returns a lease, ErrLeaseNotFound if there is none.
func (b *batch) lease(ctx context.Context, id LeaseID) (Lease, error) {
	if l, ok := b.leases[id]; ok {
		if l == nil {
			return Lease{}, ErrLeaseNotFound
		}
		return *l, nil
	}
	l, err := b.tx.Lease(ctx, id)
	if err != nil {
		return Lease{}, err
	}
	b.leases[id] = &l
	return l, nil
}

func (b *batch) putLease(ctx context.Context, l Lease) error {
	b.dirty = true
	b.leases[l.ID] = &l
	return b.tx.PutLease(ctx, l)
}

// deleteLease removes a lease and, as the one revision of this request, all keys attached to it.
func (b *batch) deleteLease(ctx context.Context, id LeaseID) error {
	if _, err := b.lease(ctx, id); err != nil {
		return err
	}
	if err := b.flush(ctx); err != nil {
		return err
	}
	keys, err := b.tx.LeaseKeys(ctx, id)
	if err != nil {
		return err
	}
	for _, key := range keys {
		row, err := b.get(ctx, key)
		if err != nil {
			return err
		}
		if err := b.tombstone(row); err != nil {
			return err
		}
	}
	b.dirty = true
	b.leases[id] = nil
	return b.tx.DeleteLease(ctx, id)
}

// flush makes the database see what the batch changed.
func (b *batch) flush(ctx context.Context) error {
	if len(b.unsent) == 0 {
		return nil
	}
	err := b.tx.Write(ctx, b.unsent)
	b.unsent = nil
	return err
}

// end closes the request that ran: its changes, if any, become one revision (I1, I3).
func (b *batch) end() {
	if len(b.pending) == 0 {
		return
	}
	b.meta.CurrentRevision++
	b.events = append(b.events, b.pending...)
	b.pending = nil
}

// clean says whether a request that failed left nothing behind in the batch.
func (b *batch) clean() bool { return len(b.pending) == 0 }

// changed says whether there is anything to commit.
func (b *batch) changed() bool { return len(b.events) > 0 || b.dirty }
