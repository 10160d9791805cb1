package etcdshim

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// pb -> store

func keyRange(key, end []byte) sqlstore.KeyRange { return sqlstore.KeyRange{Key: key, End: end} }

func rangeRequest(r *pb.RangeRequest) *sqlstore.RangeRequest {
	fields := sqlstore.AllFields
	switch {
	case r.CountOnly:
		fields = sqlstore.NoFields
	case r.KeysOnly:
		fields = sqlstore.KeyFields
	}
	return &sqlstore.RangeRequest{
		KeyRange:          keyRange(r.Key, r.RangeEnd),
		Revision:          sqlstore.Revision(r.Revision),
		Limit:             r.Limit,
		Fields:            fields,
		SortTarget:        sqlstore.SortTarget(r.SortTarget), // the enumerations have the same order
		SortOrder:         sqlstore.SortOrder(r.SortOrder),
		MinModRevision:    sqlstore.Revision(r.MinModRevision),
		MaxModRevision:    sqlstore.Revision(r.MaxModRevision),
		MinCreateRevision: sqlstore.Revision(r.MinCreateRevision),
		MaxCreateRevision: sqlstore.Revision(r.MaxCreateRevision),
	}
}

func putRequest(r *pb.PutRequest) *sqlstore.PutRequest {
	return &sqlstore.PutRequest{
		Key: r.Key, Value: r.Value, Lease: sqlstore.LeaseID(r.Lease),
		IgnoreValue: r.IgnoreValue, IgnoreLease: r.IgnoreLease, PrevKV: r.PrevKv,
	}
}

func deleteRequest(r *pb.DeleteRangeRequest) *sqlstore.DeleteRequest {
	return &sqlstore.DeleteRequest{KeyRange: keyRange(r.Key, r.RangeEnd), PrevKV: r.PrevKv}
}

func txnRequest(r *pb.TxnRequest) *sqlstore.TxnRequest {
	t := &sqlstore.TxnRequest{
		Compare: make([]sqlstore.Compare, len(r.Compare)),
		Success: ops(r.Success),
		Failure: ops(r.Failure),
	}
	for i, c := range r.Compare {
		t.Compare[i] = compare(c)
	}
	return t
}

func ops(requests []*pb.RequestOp) []sqlstore.Op {
	ops := make([]sqlstore.Op, len(requests))
	for i, r := range requests {
		switch {
		case r.GetRequestRange() != nil:
			ops[i].Range = rangeRequest(r.GetRequestRange())
		case r.GetRequestPut() != nil:
			ops[i].Put = putRequest(r.GetRequestPut())
		case r.GetRequestDeleteRange() != nil:
			ops[i].Delete = deleteRequest(r.GetRequestDeleteRange())
		case r.GetRequestTxn() != nil:
			ops[i].Txn = txnRequest(r.GetRequestTxn())
		}
	}
	return ops
}

func compare(c *pb.Compare) sqlstore.Compare {
	out := sqlstore.Compare{
		KeyRange: keyRange(c.Key, c.RangeEnd),
		Target:   sqlstore.CompareTarget(c.Target), // these enumerations have the same order, too
		Result:   sqlstore.CompareResult(c.Result),
	}
	switch c.Target {
	case pb.Compare_VERSION:
		out.Number = c.GetVersion()
	case pb.Compare_CREATE:
		out.Number = c.GetCreateRevision()
	case pb.Compare_MOD:
		out.Number = c.GetModRevision()
	case pb.Compare_VALUE:
		out.Value = c.GetValue()
	case pb.Compare_LEASE:
		out.Number = c.GetLease()
	}
	return out
}

// store -> pb

func fill(dst *mvccpb.KeyValue, kv *sqlstore.KeyValue) {
	dst.Key = kv.Key
	dst.Value = kv.Value
	dst.CreateRevision = int64(kv.CreateRevision)
	dst.ModRevision = int64(kv.ModRevision)
	dst.Version = kv.Version
	dst.Lease = int64(kv.Lease)
}

func keyValue(kv *sqlstore.KeyValue) *mvccpb.KeyValue {
	if kv == nil {
		return nil
	}
	out := &mvccpb.KeyValue{}
	fill(out, kv)
	return out
}

func keyValues(kvs []sqlstore.KeyValue) []*mvccpb.KeyValue {
	if len(kvs) == 0 {
		return nil
	}
	all := make([]mvccpb.KeyValue, len(kvs)) // one allocation for all of them
	out := make([]*mvccpb.KeyValue, len(kvs))
	for i := range kvs {
		fill(&all[i], &kvs[i])
		out[i] = &all[i]
	}
	return out
}

func rangeResponse(r *sqlstore.RangeResult) *pb.RangeResponse {
	return &pb.RangeResponse{Kvs: keyValues(r.KVs), More: r.More, Count: r.Count}
}

func putResponse(r *sqlstore.PutResult) *pb.PutResponse {
	return &pb.PutResponse{PrevKv: keyValue(r.Prev)}
}

func deleteResponse(r *sqlstore.DeleteResult) *pb.DeleteRangeResponse {
	return &pb.DeleteRangeResponse{Deleted: r.Deleted, PrevKvs: keyValues(r.Prev)}
}

// txnResponse has no header yet. In the answers to the operations only the revision is set, and of nested Txns nothing: as etcd does it.
func txnResponse(r *sqlstore.TxnResult) *pb.TxnResponse {
	out := &pb.TxnResponse{Succeeded: r.Succeeded, Responses: make([]*pb.ResponseOp, len(r.Responses))}
	for i, op := range r.Responses {
		out.Responses[i] = responseOp(op)
	}
	return out
}

func responseOp(op sqlstore.OpResult) *pb.ResponseOp {
	switch {
	case op.Range != nil:
		res := rangeResponse(op.Range)
		res.Header = &pb.ResponseHeader{Revision: int64(op.Range.Revision)}
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: res}}
	case op.Put != nil:
		res := putResponse(op.Put)
		res.Header = &pb.ResponseHeader{Revision: int64(op.Put.Revision)}
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: res}}
	case op.Delete != nil:
		res := deleteResponse(op.Delete)
		res.Header = &pb.ResponseHeader{Revision: int64(op.Delete.Revision)}
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: res}}
	case op.Txn != nil:
		res := txnResponse(op.Txn)
		res.Header = &pb.ResponseHeader{}
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: res}}
	}
	return &pb.ResponseOp{}
}

// event shares the key and value bytes with the store's event, which nobody changes.
func event(e *sqlstore.Event, withPrev bool) *mvccpb.Event {
	out := &mvccpb.Event{Kv: keyValue(&e.KV)}
	if e.Type == sqlstore.EventDelete {
		out.Type = mvccpb.Event_DELETE
	}
	if withPrev {
		out.PrevKv = keyValue(e.Prev)
	}
	return out
}
