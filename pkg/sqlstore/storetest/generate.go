package storetest

import (
	"math/rand/v2"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// generator makes random requests that fit the state of the model: few keys, and numbers near those that are there, so that
// comparisons hold about as often as not and operations meet each other.
type generator struct {
	*rand.Rand
	m *model
}

var randomKeys = []string{"\x00", "\x00\x01", "A", "a", "a\x00", "aa", "ab", "a\xff", "a\xff\xff", "b", "\xff", "\xff\xff"}

func (g *generator) key() string { return randomKeys[g.IntN(len(randomKeys))] }

func (g *generator) one(n int) bool { return g.IntN(n) == 0 }

func (g *generator) keyRange() sqlstore.KeyRange {
	switch g.IntN(6) {
	case 0:
		return fromKey(g.key())
	case 1:
		return span(g.key(), g.key()) // empty if it is the wrong way round
	case 2:
		return prefix([]string{"\x00", "a", "a\x00", "b"}[g.IntN(4)])
	default:
		return single(g.key())
	}
}

// revision is the newest, or one about as far back as can be read, or a little beyond.
func (g *generator) revision() sqlstore.Revision {
	if g.one(2) {
		return 0
	}
	first := max(g.m.compacted-1, 1)
	return first + sqlstore.Revision(g.Int64N(int64(g.m.current()-first+2)))
}

func (g *generator) lease() sqlstore.LeaseID {
	if g.one(3) {
		return sqlstore.LeaseID(1 + g.IntN(4))
	}
	return 0
}

func (g *generator) value() string {
	return string(make([]byte, g.IntN(3))) + string(rune('a'+g.IntN(4)))
}

func (g *generator) rangeRequest() sqlstore.RangeRequest {
	r := sqlstore.RangeRequest{KeyRange: g.keyRange(), Revision: g.revision(), Fields: sqlstore.Fields(g.IntN(3))}
	if g.one(2) {
		r.Limit = int64(g.IntN(5))
	}
	if g.one(4) {
		r.SortTarget, r.SortOrder = sqlstore.SortTarget(g.IntN(5)), sqlstore.SortOrder(g.IntN(3))
	}
	for _, bound := range []*sqlstore.Revision{&r.MinModRevision, &r.MaxModRevision, &r.MinCreateRevision, &r.MaxCreateRevision} {
		if g.one(10) {
			*bound = g.revision()
		}
	}
	return r
}

func (g *generator) compare() sqlstore.Compare {
	c := sqlstore.Compare{
		KeyRange: g.keyRange(), Target: sqlstore.CompareTarget(g.IntN(5)), Result: sqlstore.CompareResult(g.IntN(4)),
		Value: []byte(g.value()),
	}
	kv := g.m.states[g.m.current()][string(c.Key)]
	switch c.Target {
	case sqlstore.CompareVersion:
		c.Number = kv.Version
	case sqlstore.CompareCreate:
		c.Number = int64(kv.CreateRevision)
	case sqlstore.CompareMod:
		c.Number = int64(kv.ModRevision)
	case sqlstore.CompareLease:
		c.Number = int64(kv.Lease)
	}
	if g.one(4) {
		c.Number += int64(g.IntN(3)) - 1
	}
	return c
}

func (g *generator) op(depth int) sqlstore.Op {
	switch n := g.IntN(10); {
	case n < 2 && depth < 3:
		r := g.txn(depth + 1)
		return sqlstore.Op{Txn: &r}
	case n < 4:
		return read(g.rangeRequest())
	case n < 6:
		return sqlstore.Op{Delete: &sqlstore.DeleteRequest{KeyRange: g.keyRange(), PrevKV: g.one(2)}}
	default:
		p := &sqlstore.PutRequest{Key: []byte(g.key()), PrevKV: g.one(2), IgnoreValue: g.one(10), IgnoreLease: g.one(10)}
		if !p.IgnoreValue {
			p.Value = []byte(g.value())
		}
		if !p.IgnoreLease {
			p.Lease = g.lease()
		}
		return sqlstore.Op{Put: p}
	}
}

func (g *generator) ops(depth, most int) []sqlstore.Op {
	list := make([]sqlstore.Op, g.IntN(most+1))
	for i := range list {
		list[i] = g.op(depth)
	}
	return list
}

func (g *generator) txn(depth int) sqlstore.TxnRequest {
	r := sqlstore.TxnRequest{Success: g.ops(depth, 3), Failure: g.ops(depth, 2)}
	for range g.IntN(3) {
		r.Compare = append(r.Compare, g.compare())
	}
	return r
}

func (g *generator) watch() sqlstore.WatchRequest {
	first := max(g.m.compacted-1, 1)
	return sqlstore.WatchRequest{
		KeyRange: g.keyRange(), NoPut: g.one(6), NoDelete: g.one(6),
		From: first + sqlstore.Revision(g.Int64N(int64(g.m.current()-first+4))),
	}
}
