package conformance

import (
	"bytes"
	"math/rand/v2"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// generator makes random requests that are likely to meet each other: few keys, revisions near the current one.
type generator struct {
	rnd      *rand.Rand
	revision int64 // the newest that an answer has shown
	leases   []int64
	// The revisions that were compacted at.
	compacted map[int64]bool
	// An alarm that keeps etcd from most of its work.
	alarm *pb.AlarmRequest
	// A Txn has either puts that keep a value or lease, or deletes without an upper end: a put that keeps what such a delete
	// took away makes etcd 3.7.0 panic.
	openDeletes bool
	// The revisions in which a key was put and deleted, which etcd's check for keys changed twice does not see if the delete has no upper
	// end. Compacted there, etcd 3.7.0 loses versions that it still has in its index, and panics when one is read.
	twice map[int64]bool
}

func newGenerator(source rand.Source) *generator {
	return &generator{rnd: rand.New(source), revision: 1, compacted: map[int64]bool{}, twice: map[int64]bool{}}
}

// Keys with bytes at both ends of the alphabet, prefixes of one another.
var keys = []string{"a", "a\x00", "a/1", "a/2", "a/2/x", "b", "b\xff", "b\xff\xff", "c", "\x00", "\xff", "\xff\xff"}

// learn takes the revision from an answer.
func (g *generator) learn(request, answer proto.Message) {
	switch r := request.(type) {
	case *pb.CompactionRequest:
		g.compacted[r.Revision] = true
	case *pb.AlarmRequest:
		switch r.Action {
		case pb.AlarmRequest_ACTIVATE:
			g.alarm = r
		case pb.AlarmRequest_DEACTIVATE:
			if g.alarm != nil && g.alarm.MemberID == r.MemberID && g.alarm.Alarm == r.Alarm {
				g.alarm = nil
			}
		}
	}
	if r, ok := request.(*pb.TxnRequest); ok {
		answer := answer.(*pb.TxnResponse)
		puts, open := taken(r, answer)
		for _, key := range puts {
			if open != nil && bytes.Compare(key, open) >= 0 {
				g.twice[answer.Header.Revision] = true
			}
		}
	}
	if h, ok := answer.(interface{ GetHeader() *pb.ResponseHeader }); ok && answer != nil && h.GetHeader() != nil {
		g.revision = max(g.revision, h.GetHeader().Revision)
	}
}

// taken is what a Txn did: the keys that it put, and the first key from which on it deleted everything, nil if it did not.
func taken(r *pb.TxnRequest, answer *pb.TxnResponse) (puts [][]byte, open []byte) {
	branch := r.Failure
	if answer.Succeeded {
		branch = r.Success
	}
	add := func(key []byte) {
		if open == nil || bytes.Compare(key, open) < 0 {
			open = key
		}
	}
	for i, op := range branch {
		switch {
		case op.GetRequestPut() != nil:
			puts = append(puts, op.GetRequestPut().Key)
		case op.GetRequestDeleteRange() != nil && bytes.Equal(op.GetRequestDeleteRange().RangeEnd, []byte{0}):
			add(op.GetRequestDeleteRange().Key)
		case op.GetRequestTxn() != nil:
			more, from := taken(op.GetRequestTxn(), answer.Responses[i].GetResponseTxn())
			puts = append(puts, more...)
			if from != nil {
				add(from)
			}
		}
	}
	return puts, open
}

func (g *generator) request() proto.Message {
	if g.alarm != nil && g.one(8) { // soon, so that not too much is refused
		return &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: g.alarm.MemberID, Alarm: g.alarm.Alarm}
	}
	switch n := g.rnd.IntN(108); {
	case n < 8:
		return g.other()
	case n < 38:
		return g.put()
	case n < 63:
		return g.rangeRequest()
	case n < 73:
		return g.deleteRange()
	case n < 100:
		g.openDeletes = g.one(2)
		return g.txn(2)
	case n < 102:
		r := &pb.CompactionRequest{Revision: g.someRevision(), Physical: g.one(2)}
		for g.twice[r.Revision] {
			r.Revision--
		}
		return r
	case n < 106:
		id := int64(1 + g.rnd.IntN(6))
		g.leases = append(g.leases, id)
		return &pb.LeaseGrantRequest{ID: id, TTL: 1000 + int64(g.rnd.IntN(1000))}
	default:
		return &pb.LeaseRevokeRequest{ID: int64(1 + g.rnd.IntN(7))}
	}
}

// other asks for what is not asked for so often.
func (g *generator) other() proto.Message {
	switch g.rnd.IntN(9) {
	case 0, 1:
		return &pb.LeaseTimeToLiveRequest{ID: int64(g.rnd.IntN(8)), Keys: g.one(2)}
	case 2:
		return &pb.LeaseLeasesRequest{}
	case 3:
		return &pb.LeaseKeepAliveRequest{ID: int64(g.rnd.IntN(8))}
	case 4:
		return &pb.LeaseGrantRequest{ID: int64(1 + g.rnd.IntN(6)), TTL: 9_000_000_000 + int64(g.rnd.IntN(2))}
	case 5:
		return &pb.StatusRequest{}
	case 6:
		return &pb.MemberListRequest{}
	case 7:
		if g.alarm == nil && g.one(2) {
			return &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: uint64(g.rnd.IntN(3)), Alarm: pb.AlarmType(g.rnd.IntN(3))}
		}
		return &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: uint64(g.rnd.IntN(3)), Alarm: pb.AlarmType(g.rnd.IntN(3))}
	default:
		return &pb.AlarmRequest{Alarm: pb.AlarmType(g.rnd.IntN(3))}
	}
}

// watches all begin above the revision of an empty store. One from the past would be caught up with in the background, and whether a
// compaction comes first is chance.
func (g *generator) watches() []*pb.WatchCreateRequest {
	return []*pb.WatchCreateRequest{
		{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: 2, PrevKv: true},
		{Key: []byte("a"), RangeEnd: []byte("b"), PrevKv: true},
		{Key: []byte("b")},
		{Key: []byte("a/2"), RangeEnd: []byte("a/3"), StartRevision: 20, PrevKv: true},
		{Key: []byte("\xff"), RangeEnd: []byte{0}, Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}},
	}
}

func (g *generator) key() []byte {
	if g.rnd.IntN(100) == 0 {
		return nil // is refused
	}
	return []byte(keys[g.rnd.IntN(len(keys))])
}

// end is the end of a range: mostly none, else from the key on, or some key, maybe before the start.
func (g *generator) end() []byte {
	switch n := g.rnd.IntN(10); {
	case n < 6:
		return nil
	case n < 8:
		return []byte{0}
	default:
		return []byte(keys[g.rnd.IntN(len(keys))])
	}
}

func (g *generator) someRevision() int64 {
	switch n := g.rnd.IntN(20); {
	case n == 0:
		return g.revision + 2
	default:
		return max(1, g.revision-int64(g.rnd.IntN(40)))
	}
}

func (g *generator) value() []byte {
	if g.rnd.IntN(10) == 0 {
		return nil
	}
	value := make([]byte, g.rnd.IntN(20))
	for i := range value {
		value[i] = byte(g.rnd.IntN(256))
	}
	return value
}

func (g *generator) lease() int64 {
	if len(g.leases) == 0 || g.rnd.IntN(4) != 0 {
		return 0
	}
	return g.leases[g.rnd.IntN(len(g.leases))] // may be revoked by now
}

func (g *generator) one(in int) bool { return g.rnd.IntN(in) == 0 }

func (g *generator) put() *pb.PutRequest {
	r := &pb.PutRequest{Key: g.key(), PrevKv: g.one(3), IgnoreValue: g.one(10), IgnoreLease: g.one(10)}
	if !r.IgnoreValue || g.one(10) {
		r.Value = g.value()
	}
	if !r.IgnoreLease || g.one(10) {
		r.Lease = g.lease()
	}
	return r
}

func (g *generator) rangeRequest() *pb.RangeRequest {
	r := &pb.RangeRequest{
		Key: g.key(), RangeEnd: g.end(), KeysOnly: g.one(6), CountOnly: g.one(6), Serializable: g.one(6),
	}
	if g.one(3) {
		r.Limit = int64(g.rnd.IntN(6))
	}
	if g.one(3) {
		r.Revision = g.someRevision()
	}
	if g.one(5) {
		r.SortOrder = pb.RangeRequest_SortOrder(g.rnd.IntN(3))
		// By key or modification: keys that tie come in no order that etcd promises.
		r.SortTarget = []pb.RangeRequest_SortTarget{pb.RangeRequest_KEY, pb.RangeRequest_MOD}[g.rnd.IntN(2)]
		if r.SortTarget == pb.RangeRequest_MOD {
			r.RangeEnd = nil
		}
	}
	if g.one(8) {
		r.MinModRevision = g.someRevision()
	}
	if g.one(8) {
		r.MaxCreateRevision = g.someRevision()
	}
	return r
}

func (g *generator) deleteRange() *pb.DeleteRangeRequest {
	return &pb.DeleteRangeRequest{Key: g.key(), RangeEnd: g.end(), PrevKv: g.one(2)}
}

func (g *generator) txn(depth int) *pb.TxnRequest {
	r := &pb.TxnRequest{}
	for range g.rnd.IntN(3) {
		r.Compare = append(r.Compare, g.compare())
	}
	for range g.rnd.IntN(3) {
		r.Success = append(r.Success, g.op(depth))
	}
	for range g.rnd.IntN(3) {
		r.Failure = append(r.Failure, g.op(depth))
	}
	return r
}

func (g *generator) compare() *pb.Compare {
	c := &pb.Compare{Key: g.key(), Result: pb.Compare_CompareResult(g.rnd.IntN(4))}
	if g.one(4) {
		c.RangeEnd = g.end()
	}
	switch g.rnd.IntN(5) {
	case 0:
		c.Target, c.TargetUnion = pb.Compare_VERSION, &pb.Compare_Version{Version: int64(g.rnd.IntN(4))}
	case 1:
		c.Target, c.TargetUnion = pb.Compare_CREATE, &pb.Compare_CreateRevision{CreateRevision: g.someRevision()}
	case 2:
		revision := g.someRevision()
		if g.one(2) {
			revision = 0
		}
		c.Target, c.TargetUnion = pb.Compare_MOD, &pb.Compare_ModRevision{ModRevision: revision}
	case 3:
		c.Target, c.TargetUnion = pb.Compare_VALUE, &pb.Compare_Value{Value: g.value()}
	case 4:
		c.Target, c.TargetUnion = pb.Compare_LEASE, &pb.Compare_Lease{Lease: g.lease()}
	}
	return c
}

func (g *generator) op(depth int) *pb.RequestOp {
	switch n := g.rnd.IntN(10); {
	case n < 4:
		put := g.put()
		if g.openDeletes {
			put.IgnoreValue, put.IgnoreLease = false, false
		}
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put}}
	case n < 7:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: g.rangeRequest()}}
	case n < 9 || depth == 0:
		del := g.deleteRange()
		if !g.openDeletes && bytes.Equal(del.RangeEnd, []byte{0}) {
			del.RangeEnd = nil
		}
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: del}}
	default:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: g.txn(depth - 1)}}
	}
}
