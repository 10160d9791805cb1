package storetest

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// state is the keys at one revision.
type state map[string]sqlstore.KeyValue

// model is what the store promises, in memory, with nothing in mind but being right: the keys at each revision are kept whole.
type model struct {
	states    []state // by revision; the first two are empty
	log       []*sqlstore.Event
	compacted sqlstore.Revision
	leases    map[sqlstore.LeaseID]bool
}

func newModel() *model {
	return &model{states: []state{{}, {}}, leases: map[sqlstore.LeaseID]bool{}}
}

func (m *model) current() sqlstore.Revision { return sqlstore.Revision(len(m.states) - 1) }

// commit makes a state the newest, if anything has changed.
func (m *model) commit(s state, events []*sqlstore.Event) {
	if len(events) > 0 {
		m.states = append(m.states, s)
		m.log = append(m.log, events...)
	}
}

func (m *model) readable(revision sqlstore.Revision) error {
	switch {
	case revision <= 0:
		return nil
	case revision > m.current():
		return sqlstore.ErrFutureRevision
	case revision < m.compacted:
		return sqlstore.ErrCompacted
	}
	return nil
}

func (m *model) compact(revision sqlstore.Revision) error {
	if revision <= m.compacted {
		return sqlstore.ErrCompacted
	}
	if revision > m.current() {
		return sqlstore.ErrFutureRevision
	}
	m.compacted = revision
	return nil
}

func (m *model) revoke(id sqlstore.LeaseID) error {
	if !m.leases[id] {
		return sqlstore.ErrLeaseNotFound
	}
	delete(m.leases, id)
	t := m.begin()
	for _, key := range slices.Sorted(maps.Keys(t.now)) {
		if t.now[key].Lease == id {
			t.delete(key)
		}
	}
	m.commit(t.now, t.events)
	return nil
}

func (m *model) rangeOf(r *sqlstore.RangeRequest) (*sqlstore.RangeResult, error) {
	if err := m.readable(r.Revision); err != nil {
		return nil, err
	}
	return m.begin().rangeOf(r), nil
}

// events are the events that a watcher has to get, in order.
func (m *model) events(r *sqlstore.WatchRequest) (events []*sqlstore.Event) {
	for _, e := range m.log {
		unwanted := e.Type == sqlstore.EventPut && r.NoPut || e.Type == sqlstore.EventDelete && r.NoDelete
		if e.KV.ModRevision >= r.From && inRange(string(e.KV.Key), r.KeyRange) && !unwanted {
			events = append(events, e)
		}
	}
	return events
}

// modelTxn is a Txn under way.
type modelTxn struct {
	m           *model
	before, now state
	events      []*sqlstore.Event
	failed      error // that made an operation impossible
}

func (m *model) begin() *modelTxn {
	before := m.states[m.current()]
	return &modelTxn{m: m, before: before, now: maps.Clone(before)}
}

func (m *model) txn(r *sqlstore.TxnRequest) (*sqlstore.TxnResult, error) {
	if ChangesTwice(r) {
		return nil, sqlstore.ErrDuplicateKey
	}
	t := m.begin()
	if err := t.check(r); err != nil {
		return nil, err
	}
	res := t.execute(r)
	if t.failed != nil {
		return nil, t.failed
	}
	m.commit(t.now, t.events)
	return res, nil
}

// branch is what a Txn runs; nothing that runs changes it.
func (t *modelTxn) branch(r *sqlstore.TxnRequest) (bool, []sqlstore.Op) {
	for _, c := range r.Compare {
		matched := false
		for key, kv := range t.before {
			if inRange(key, c.KeyRange) {
				matched = true
				if !compareHolds(c, kv) {
					return false, r.Failure
				}
			}
		}
		if !matched && (c.Target == sqlstore.CompareValue || !compareHolds(c, sqlstore.KeyValue{})) {
			return false, r.Failure
		}
	}
	return true, r.Success
}

func compareHolds(c sqlstore.Compare, kv sqlstore.KeyValue) bool {
	order := 0
	switch c.Target {
	case sqlstore.CompareVersion:
		order = cmp.Compare(kv.Version, c.Number)
	case sqlstore.CompareCreate:
		order = cmp.Compare(int64(kv.CreateRevision), c.Number)
	case sqlstore.CompareMod:
		order = cmp.Compare(int64(kv.ModRevision), c.Number)
	case sqlstore.CompareLease:
		order = cmp.Compare(int64(kv.Lease), c.Number)
	case sqlstore.CompareValue:
		order = bytes.Compare(kv.Value, c.Value)
	}
	return map[sqlstore.CompareResult]bool{
		sqlstore.Equal: order == 0, sqlstore.NotEqual: order != 0, sqlstore.Less: order < 0, sqlstore.Greater: order > 0,
	}[c.Result]
}

// check finds the first operation that must fail.
func (t *modelTxn) check(r *sqlstore.TxnRequest) error {
	_, list := t.branch(r)
	for _, op := range list {
		switch {
		case op.Range != nil:
			if err := t.m.readable(op.Range.Revision); err != nil {
				return err
			}
		case op.Put != nil:
			if op.Put.Lease != 0 && !t.m.leases[op.Put.Lease] {
				return sqlstore.ErrLeaseNotFound
			}
			if _, ok := t.before[string(op.Put.Key)]; !ok && (op.Put.IgnoreValue || op.Put.IgnoreLease) {
				return sqlstore.ErrKeyNotFound
			}
		case op.Txn != nil:
			if err := t.check(op.Txn); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *modelTxn) execute(r *sqlstore.TxnRequest) *sqlstore.TxnResult {
	succeeded, list := t.branch(r)
	res := &sqlstore.TxnResult{Succeeded: succeeded}
	for _, op := range list {
		var answer sqlstore.OpResult
		switch {
		case op.Range != nil:
			answer.Range = t.rangeOf(op.Range)
		case op.Put != nil:
			answer.Put = t.put(op.Put)
		case op.Delete != nil:
			answer.Delete = t.deleteRange(op.Delete)
		case op.Txn != nil:
			answer.Txn = t.execute(op.Txn)
		}
		res.Responses = append(res.Responses, answer)
	}
	res.Revision = t.revision()
	return res
}

func (t *modelTxn) revision() sqlstore.Revision {
	if len(t.events) > 0 {
		return t.m.current() + 1
	}
	return t.m.current()
}

func (t *modelTxn) put(p *sqlstore.PutRequest) *sqlstore.PutResult {
	next := t.m.current() + 1
	kv := sqlstore.KeyValue{Key: p.Key, Value: p.Value, Lease: p.Lease, CreateRevision: next, ModRevision: next, Version: 1}
	event := &sqlstore.Event{Type: sqlstore.EventPut}
	res := &sqlstore.PutResult{Revision: next}
	if prev, ok := t.now[string(p.Key)]; ok {
		kv.CreateRevision, kv.Version = prev.CreateRevision, prev.Version+1
		if p.IgnoreValue {
			kv.Value = prev.Value
		}
		if p.IgnoreLease {
			kv.Lease = prev.Lease
		}
		event.Prev = t.prev(string(p.Key))
		if p.PrevKV {
			res.Prev = &prev
		}
	} else if p.IgnoreValue || p.IgnoreLease { // it was there before the Txn
		t.failed = sqlstore.ErrKeyNotFound
	}
	event.KV = kv
	t.now[string(p.Key)] = kv
	t.events = append(t.events, event)
	return res
}

func (t *modelTxn) deleteRange(d *sqlstore.DeleteRequest) *sqlstore.DeleteResult {
	res := &sqlstore.DeleteResult{}
	for _, key := range slices.Sorted(maps.Keys(t.now)) {
		if inRange(key, d.KeyRange) {
			res.Deleted++
			if d.PrevKV {
				res.Prev = append(res.Prev, t.now[key])
			}
			t.delete(key)
		}
	}
	res.Revision = t.revision()
	return res
}

func (t *modelTxn) delete(key string) {
	delete(t.now, key)
	t.events = append(t.events, &sqlstore.Event{
		Type: sqlstore.EventDelete, Prev: t.prev(key), KV: sqlstore.KeyValue{Key: []byte(key), ModRevision: t.m.current() + 1},
	})
}

// prev is what events of a key call its previous version: that before the Txn, even if the Txn changes the key twice.
func (t *modelTxn) prev(key string) *sqlstore.KeyValue {
	if kv, ok := t.before[key]; ok {
		return &kv
	}
	return nil
}

func (t *modelTxn) rangeOf(r *sqlstore.RangeRequest) *sqlstore.RangeResult {
	from := t.now
	if r.Revision > 0 {
		from = t.m.states[r.Revision]
	}
	res := &sqlstore.RangeResult{Revision: t.revision()}
	for _, key := range slices.Sorted(maps.Keys(from)) {
		if kv := from[key]; inRange(key, r.KeyRange) {
			res.Count++
			if r.Fields != sqlstore.NoFields && within(kv.ModRevision, r.MinModRevision, r.MaxModRevision) &&
				within(kv.CreateRevision, r.MinCreateRevision, r.MaxCreateRevision) {
				res.KVs = append(res.KVs, kv)
			}
		}
	}
	bounds := r.MinModRevision | r.MaxModRevision | r.MinCreateRevision | r.MaxCreateRevision
	if r.SortOrder == sqlstore.SortNone && bounds == 0 && r.Limit > 0 && int64(len(res.KVs)) > r.Limit {
		res.KVs = res.KVs[:r.Limit+1] // without an order etcd sorts only so many
	}
	sortKVs(res.KVs, r)
	if r.Limit > 0 && int64(len(res.KVs)) > r.Limit {
		res.KVs, res.More = res.KVs[:r.Limit], true
	}
	if r.Fields == sqlstore.KeyFields {
		for i := range res.KVs {
			res.KVs[i].Value = nil
			if r.SortTarget != sqlstore.SortByValue {
				res.KVs[i].Lease = 0 // etcd answers from its index, which has none
			}
		}
	}
	return res
}

func within(revision, low, high sqlstore.Revision) bool {
	return (low == 0 || revision >= low) && (high == 0 || revision <= high)
}

func sortKVs(kvs []sqlstore.KeyValue, r *sqlstore.RangeRequest) {
	slices.SortStableFunc(kvs, func(a, b sqlstore.KeyValue) int {
		order := 0
		switch r.SortTarget {
		case sqlstore.SortByKey:
			order = bytes.Compare(a.Key, b.Key)
		case sqlstore.SortByVersion:
			order = cmp.Compare(a.Version, b.Version)
		case sqlstore.SortByCreate:
			order = cmp.Compare(a.CreateRevision, b.CreateRevision)
		case sqlstore.SortByMod:
			order = cmp.Compare(a.ModRevision, b.ModRevision)
		case sqlstore.SortByValue:
			order = bytes.Compare(a.Value, b.Value)
		}
		if r.SortOrder == sqlstore.SortDescend {
			order = -order
		}
		return order
	})
}
