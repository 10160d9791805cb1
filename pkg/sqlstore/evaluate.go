package sqlstore

import (
	"context"
	"fmt"
)

// evaluation runs one Txn inside a batch, in etcd's order: all comparisons first, nested ones too; then checks of the
// operations on the branches taken, which alone may fail; then the operations.
type evaluation struct {
	ctx context.Context
	b   *batch
}

// branch is a Txn with its comparisons decided.
type branch struct {
	succeeded bool
	ops       []Op
	nested    []branch // of the ops that are Txns, in order
}

func (e evaluation) run(r *TxnRequest) (*TxnResult, error) {
	br, err := e.decide(r)
	if err != nil {
		return nil, err
	}
	if err := e.check(br); err != nil {
		return nil, err
	}
	return e.execute(br)
}

func (e evaluation) decide(r *TxnRequest) (branch, error) {
	br := branch{succeeded: true, ops: r.Success}
	for i := range r.Compare {
		holds, err := e.holds(&r.Compare[i])
		if err != nil {
			return branch{}, err
		}
		if !holds {
			br = branch{succeeded: false, ops: r.Failure}
			break
		}
	}
	for _, op := range br.ops {
		if op.Txn == nil {
			continue
		}
		nested, err := e.decide(op.Txn)
		if err != nil {
			return branch{}, err
		}
		br.nested = append(br.nested, nested)
	}
	return br, nil
}

func (e evaluation) holds(c *Compare) (bool, error) {
	if c.Single() {
		row, err := e.b.get(e.ctx, c.Key)
		if err != nil {
			return false, err
		}
		if row == nil {
			return c.holdsFor(nil), nil
		}
		return c.holdsFor(&row.KeyValue), nil
	}
	rows, err := e.b.live(e.ctx, c.KeyRange)
	if err != nil {
		return false, err
	}
	if len(rows) == 0 {
		return c.holdsFor(nil), nil
	}
	for i := range rows {
		if !c.holdsFor(&rows[i].KeyValue) {
			return false, nil
		}
	}
	return true, nil
}

func (e evaluation) check(br branch) error {
	nested := br.nested
	for _, op := range br.ops {
		switch {
		case op.Range != nil:
			if err := e.b.meta.readable(op.Range.Revision); err != nil {
				return err
			}
		case op.Put != nil:
			if err := e.checkPut(op.Put); err != nil {
				return err
			}
		case op.Txn != nil:
			if err := e.check(nested[0]); err != nil {
				return err
			}
			nested = nested[1:]
		}
	}
	return nil
}

func (e evaluation) checkPut(p *PutRequest) error {
	if p.Lease != 0 {
		if _, err := e.b.lease(e.ctx, p.Lease); err != nil {
			return err
		}
	}
	if p.IgnoreValue || p.IgnoreLease {
		row, err := e.b.get(e.ctx, p.Key)
		if err != nil {
			return err
		}
		if row == nil {
			return ErrKeyNotFound
		}
	}
	return nil
}

func (e evaluation) execute(br branch) (*TxnResult, error) {
	res := &TxnResult{Succeeded: br.succeeded, Responses: make([]OpResult, len(br.ops))}
	nested := br.nested
	for i, op := range br.ops {
		var err error
		switch {
		case op.Range != nil:
			res.Responses[i].Range, err = e.b.rangeOp(e.ctx, op.Range)
		case op.Put != nil:
			res.Responses[i].Put, err = e.put(op.Put)
		case op.Delete != nil:
			res.Responses[i].Delete, err = e.delete(op.Delete)
		case op.Txn != nil:
			res.Responses[i].Txn, err = e.execute(nested[0])
			nested = nested[1:]
		}
		if err != nil {
			return nil, err
		}
	}
	res.Revision = e.b.revision()
	return res, nil
}

func (e evaluation) put(p *PutRequest) (*PutResult, error) {
	prev, err := e.b.get(e.ctx, p.Key)
	if err != nil {
		return nil, err
	}
	kv := KeyValue{Key: p.Key, Value: p.Value, Lease: p.Lease, CreateRevision: e.b.next(), ModRevision: e.b.next(), Version: 1}
	if prev != nil {
		kv.CreateRevision = prev.CreateRevision
		kv.Version = prev.Version + 1
		if p.IgnoreValue {
			kv.Value = prev.Value
		}
		if p.IgnoreLease {
			kv.Lease = prev.Lease
		}
	} else if p.IgnoreValue || p.IgnoreLease { // an earlier operation of the Txn took it away
		return nil, ErrKeyNotFound
	}
	if err := e.b.change(kv, prev); err != nil {
		return nil, err
	}
	res := &PutResult{Revision: e.b.revision()}
	if p.PrevKV && prev != nil {
		res.Prev = &prev.KeyValue
	}
	return res, nil
}

func (e evaluation) delete(d *DeleteRequest) (*DeleteResult, error) {
	var rows []Row
	if d.Single() {
		row, err := e.b.get(e.ctx, d.Key)
		if err != nil {
			return nil, err
		}
		if row != nil {
			rows = []Row{*row}
		}
	} else {
		var err error
		if rows, err = e.b.live(e.ctx, d.KeyRange); err != nil {
			return nil, err
		}
	}
	for i := range rows {
		if err := e.b.tombstone(&rows[i]); err != nil {
			return nil, err
		}
	}
	res := &DeleteResult{Revision: e.b.revision(), Deleted: int64(len(rows))}
	if d.PrevKV {
		res.Prev = make([]KeyValue, len(rows))
		for i := range rows {
			res.Prev[i] = rows[i].KeyValue
		}
	}
	return res, nil
}

// CheckChanges says ErrDuplicateKey if a Txn may change a key twice: etcd's rule, by which the two branches of a nested Txn
// exclude each other, and a delete covers keys whether they are there or not. As in etcd, a delete without an upper end is
// overlooked: it and a put of one key are both done, in order.
func CheckChanges(r *TxnRequest) error {
	if _, err := changesOf(r.Success); err != nil {
		return err
	}
	_, err := changesOf(r.Failure)
	return err
}

// changes is what a list of operations may put and delete.
type changes struct {
	puts    map[string]struct{}
	deletes []KeyRange
}

func (c *changes) deleted(key []byte) bool {
	for _, d := range c.deletes {
		if !d.Unbounded() && d.Contains(key) {
			return true
		}
	}
	return false
}

// addPut fails if the key is put or deleted already; a put in a branch that excludes this one is allowed for.
func (c *changes) addPut(key string, excluded map[string]struct{}) error {
	if _, twice := c.puts[key]; twice {
		if _, ok := excluded[key]; !ok {
			return fmt.Errorf("%w: %q is put twice", ErrDuplicateKey, key)
		}
	}
	if c.deleted([]byte(key)) {
		return fmt.Errorf("%w: %q is put and deleted", ErrDuplicateKey, key)
	}
	c.puts[key] = struct{}{}
	return nil
}

func changesOf(ops []Op) (changes, error) {
	all := changes{puts: map[string]struct{}{}}
	for _, op := range ops {
		if op.Delete != nil {
			all.deletes = append(all.deletes, op.Delete.KeyRange)
		}
	}
	for _, op := range ops {
		if op.Txn == nil {
			continue
		}
		success, err := changesOf(op.Txn.Success)
		if err != nil {
			return changes{}, err
		}
		failure, err := changesOf(op.Txn.Failure)
		if err != nil {
			return changes{}, err
		}
		for key := range success.puts {
			if err := all.addPut(key, nil); err != nil {
				return changes{}, err
			}
		}
		for key := range failure.puts {
			if err := all.addPut(key, success.puts); err != nil {
				return changes{}, err
			}
		}
		all.deletes = append(append(all.deletes, success.deletes...), failure.deletes...)
	}
	for _, op := range ops {
		if op.Put != nil {
			if err := all.addPut(string(op.Put.Key), nil); err != nil {
				return changes{}, err
			}
		}
	}
	return all, nil
}
