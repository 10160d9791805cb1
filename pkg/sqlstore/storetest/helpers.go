package storetest

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// Requests, short.

func single(key string) sqlstore.KeyRange { return sqlstore.KeyRange{Key: []byte(key)} }

func span(key, end string) sqlstore.KeyRange {
	return sqlstore.KeyRange{Key: []byte(key), End: []byte(end)}
}

func fromKey(key string) sqlstore.KeyRange { return span(key, "\x00") }

// prefix is the range of all keys that begin with p, whose last byte is not 0xff.
func prefix(p string) sqlstore.KeyRange {
	end := []byte(p)
	end[len(end)-1]++
	return sqlstore.KeyRange{Key: []byte(p), End: end}
}

var everything = fromKey("\x00")

func put(key, value string) sqlstore.Op {
	return sqlstore.Op{Put: &sqlstore.PutRequest{Key: []byte(key), Value: []byte(value)}}
}

func putLeased(key, value string, lease sqlstore.LeaseID) sqlstore.Op {
	return sqlstore.Op{Put: &sqlstore.PutRequest{Key: []byte(key), Value: []byte(value), Lease: lease}}
}

func del(r sqlstore.KeyRange) sqlstore.Op {
	return sqlstore.Op{Delete: &sqlstore.DeleteRequest{KeyRange: r, PrevKV: true}}
}

func read(r sqlstore.RangeRequest) sqlstore.Op { return sqlstore.Op{Range: &r} }

func nested(r sqlstore.TxnRequest) sqlstore.Op { return sqlstore.Op{Txn: &r} }

func ops(list ...sqlstore.Op) sqlstore.TxnRequest { return sqlstore.TxnRequest{Success: list} }

func modIs(key string, revision sqlstore.Revision) sqlstore.Compare {
	return sqlstore.Compare{KeyRange: single(key), Target: sqlstore.CompareMod, Number: int64(revision)}
}

// Calls that must succeed.

func (f *fixture) txn(r sqlstore.TxnRequest) *sqlstore.TxnResult {
	f.Helper()
	res, err := f.Txn(f.ctx, &r)
	f.must(err)
	return res
}

func (f *fixture) put(key, value string) sqlstore.Revision {
	f.Helper()
	return f.txn(ops(put(key, value))).Revision
}

func (f *fixture) delete(r sqlstore.KeyRange) *sqlstore.DeleteResult {
	f.Helper()
	return f.txn(ops(del(r))).Responses[0].Delete
}

func (f *fixture) rangeOf(r sqlstore.RangeRequest) *sqlstore.RangeResult {
	f.Helper()
	res, err := f.Range(f.ctx, &r)
	f.must(err)
	return res
}

// list describes all keys of a range at a revision, 0 being the current one.
func (f *fixture) list(r sqlstore.KeyRange, revision sqlstore.Revision) []string {
	f.Helper()
	return describe(f.rangeOf(sqlstore.RangeRequest{KeyRange: r, Revision: revision}).KVs)
}

func (f *fixture) current() sqlstore.Revision {
	f.Helper()
	revision, err := f.CurrentRevision(f.ctx)
	f.must(err)
	return revision
}

// compact compacts and waits until dead history is deleted.
func (f *fixture) compact(revision sqlstore.Revision) {
	f.Helper()
	_, err := f.CompactPhysically(f.ctx, revision)
	f.must(err)
}

// eventually waits until something holds.
func (f *fixture) eventually(what string, holds func() bool) {
	f.Helper()
	for !holds() {
		if f.ctx.Err() != nil {
			f.Fatalf("it does not come true that %s", what)
		}
		runtime.Gosched()
	}
}

func (f *fixture) grant(id sqlstore.LeaseID, ttl int64) {
	f.Helper()
	_, err := f.LeaseGrant(f.ctx, id, ttl)
	f.must(err)
}

// stored describes the rows of history as they are stored.
func (f *fixture) stored() []string {
	f.Helper()
	var rows []string
	f.must(f.engine.Walk(f.ctx, sqlstore.Visitor{
		Meta:  func(sqlstore.Meta, sqlstore.Revision) error { return nil },
		Lease: func(sqlstore.Lease) error { return nil },
		Change: func(c *sqlstore.Change) error {
			rows = append(rows, fmt.Sprintf("%s/%d", kvString(&c.KeyValue), c.Sub))
			return nil
		},
		Key: func(*sqlstore.Row) error { return nil },
	}))
	return rows
}

// Descriptions: key=value m(od) c(reate) v(ersion) l(ease).

func quote(b []byte) string { return strings.Trim(strconv.Quote(string(b)), `"`) }

func kvString(kv *sqlstore.KeyValue) string {
	if kv == nil {
		return "none"
	}
	s := fmt.Sprintf("%s=%s m%d c%d v%d", quote(kv.Key), quote(kv.Value), kv.ModRevision, kv.CreateRevision, kv.Version)
	if kv.Lease != 0 {
		s += fmt.Sprintf(" l%d", kv.Lease)
	}
	return s
}

func describe(kvs []sqlstore.KeyValue) []string {
	lines := make([]string, len(kvs))
	for i := range kvs {
		lines[i] = kvString(&kvs[i])
	}
	return lines
}

func keysOf(kvs []sqlstore.KeyValue) []string {
	keys := make([]string, len(kvs))
	for i := range kvs {
		keys[i] = string(kvs[i].Key)
	}
	return keys
}

func eventString(e *sqlstore.Event) string {
	kind := "put"
	if e.Type == sqlstore.EventDelete {
		kind = "delete"
	}
	return fmt.Sprintf("%s %s, was %s", kind, kvString(&e.KV), kvString(e.Prev))
}

func describeEvents(events []*sqlstore.Event) []string {
	lines := make([]string, len(events))
	for i, e := range events {
		lines[i] = eventString(e)
	}
	return lines
}
