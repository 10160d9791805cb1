package etcdshim

import (
	"cmp"
	"context"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kubase/kubase/pkg/sqlstore"
)

type kvServer struct {
	*server
	pb.UnsafeKVServer // a new method must fail to compile
}

func (s *kvServer) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := checkRange(r); err != nil {
		return nil, err
	}
	var res *sqlstore.RangeResult
	err := s.permitted(ctx, mayRange(r.Key, r.RangeEnd), func(generation int64) (err error) {
		if res, err = s.store.Range(ctx, rangeRequest(r)); err != nil {
			return err
		}
		return changed(generation, res.AuthGeneration)
	})
	if err != nil {
		return nil, s.rpcError(err)
	}
	out := rangeResponse(res)
	out.Header = s.header(res.Revision)
	return out, nil
}

func (s *kvServer) RangeStream(r *pb.RangeRequest, stream pb.KV_RangeStreamServer) error {
	if err := checkRangeStream(r); err != nil {
		return err
	}
	ctx, may := stream.Context(), mayRange(r.Key, r.RangeEnd)
	generation, err := s.permit(ctx, may)
	if err != nil {
		return err
	}
	err = s.store.RangeStream(ctx, rangeRequest(r), s.opts.MaxRequestBytes, func(res *sqlstore.RangeResult) error {
		if changed(generation, res.AuthGeneration) != nil {
			var err error
			if generation, err = s.permitNow(ctx, may); err != nil {
				return err
			}
		}
		out := rangeResponse(res)
		if res.Revision != 0 { // the last chunk
			out.Header = s.header(res.Revision)
		}
		return stream.Send(&pb.RangeStreamResponse{RangeResponse: out})
	})
	return s.rpcError(err)
}

func (s *kvServer) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	if err := s.checkQuota(ctx); err != nil {
		return nil, err
	}
	if err := checkPut(r); err != nil {
		return nil, err
	}
	if err := s.checkWrite(ctx, r, true); err != nil {
		return nil, err
	}
	res, err := s.txn(ctx, s.mayPut(ctx, r), &sqlstore.TxnRequest{Success: []sqlstore.Op{{Put: putRequest(r)}}})
	if err != nil {
		return nil, err
	}
	out := putResponse(res.Responses[0].Put)
	out.Header = s.header(res.Revision)
	return out, nil
}

func (s *kvServer) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	if err := checkDelete(r); err != nil {
		return nil, err
	}
	if err := s.checkWrite(ctx, r, false); err != nil {
		return nil, err
	}
	res, err := s.txn(ctx, mayDelete(r), &sqlstore.TxnRequest{Success: []sqlstore.Op{{Delete: deleteRequest(r)}}})
	if err != nil {
		return nil, err
	}
	out := deleteResponse(res.Responses[0].Delete)
	out.Header = s.header(res.Revision)
	return out, nil
}

func (s *kvServer) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	grows := puts(r)
	if grows {
		if err := s.checkQuota(ctx); err != nil {
			return nil, err
		}
	}
	if err := checkTxn(r, s.opts.MaxTxnOps); err != nil {
		return nil, err
	}
	request := txnRequest(r)
	var (
		res *sqlstore.TxnResult
		err error
	)
	if !readOnly(r) {
		err = s.checkWrite(ctx, r, grows)
	}
	if err == nil {
		res, err = s.txn(ctx, s.mayTxn(ctx, r), request)
	}
	if err != nil {
		// What is wrong with the request comes first; that is looked for again only here.
		return nil, cmp.Or(s.rpcError(sqlstore.CheckChanges(request)), err)
	}
	out := txnResponse(res)
	out.Header = s.header(res.Revision)
	return out, nil
}

// txn runs what a rule permits.
func (s *kvServer) txn(ctx context.Context, may rule, r *sqlstore.TxnRequest) (res *sqlstore.TxnResult, err error) {
	err = s.permitted(ctx, may, func(generation int64) (err error) {
		r.AuthGeneration = generation
		res, err = s.store.Txn(ctx, r)
		return err
	})
	return res, s.rpcError(err)
}

func (s *kvServer) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	if err := s.checkAlarms(false); err != nil {
		return nil, err
	}
	compact := s.store.Compact
	if r.Physical {
		compact = s.store.CompactPhysically
	}
	revision, err := compact(ctx, sqlstore.Revision(r.Revision))
	if err != nil {
		return nil, s.rpcError(err)
	}
	return &pb.CompactionResponse{Header: s.header(revision)}, nil
}

// checkWrite refuses what is too large and what an alarm forbids, in etcd's order: tokens come before that, permissions after it.
func (s *server) checkWrite(ctx context.Context, r proto.Message, grows bool) error {
	err := s.checkAlarms(grows)
	if proto.Size(r) > s.opts.MaxRequestBytes {
		err = rpctypes.ErrGRPCRequestTooLarge
	}
	if err == nil {
		return nil // the token is looked at with the permissions
	}
	_, unknown := s.permit(ctx, anybody)
	return cmp.Or(unknown, err)
}

func checkRange(r *pb.RangeRequest) error {
	if len(r.Key) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	if _, ok := pb.RangeRequest_SortOrder_name[int32(r.SortOrder)]; !ok {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	if _, ok := pb.RangeRequest_SortTarget_name[int32(r.SortTarget)]; !ok {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	return nil
}

func checkRangeStream(r *pb.RangeRequest) error {
	if err := checkRange(r); err != nil {
		return err
	}
	if r.SortOrder == pb.RangeRequest_DESCEND || r.SortOrder == pb.RangeRequest_ASCEND && r.SortTarget != pb.RangeRequest_KEY {
		return status.Error(codes.Unimplemented, "RangeStream does not support custom sort orders")
	}
	if r.MinModRevision != 0 || r.MaxModRevision != 0 || r.MinCreateRevision != 0 || r.MaxCreateRevision != 0 {
		return status.Error(codes.Unimplemented, "RangeStream does not support revision filters")
	}
	return nil
}

func checkPut(r *pb.PutRequest) error {
	switch {
	case len(r.Key) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case r.IgnoreValue && len(r.Value) != 0:
		return rpctypes.ErrGRPCValueProvided
	case r.IgnoreLease && r.Lease != 0:
		return rpctypes.ErrGRPCLeaseProvided
	}
	return nil
}

func checkDelete(r *pb.DeleteRangeRequest) error {
	if len(r.Key) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	return nil
}

// checkTxn checks what can be checked without the store. A nested Txn may use what its parent leaves of maxOps.
func checkTxn(r *pb.TxnRequest, maxOps int) error {
	n := max(len(r.Compare), len(r.Success), len(r.Failure))
	if n > maxOps {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, c := range r.Compare {
		if len(c.Key) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
	}
	for _, branch := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range branch {
			if err := checkOp(op, maxOps-n); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkOp(op *pb.RequestOp, maxOps int) error {
	switch o := op.Request.(type) {
	case *pb.RequestOp_RequestRange:
		return checkRange(o.RequestRange)
	case *pb.RequestOp_RequestPut:
		return checkPut(o.RequestPut)
	case *pb.RequestOp_RequestDeleteRange:
		return checkDelete(o.RequestDeleteRange)
	case *pb.RequestOp_RequestTxn:
		return checkTxn(o.RequestTxn, maxOps)
	}
	return rpctypes.ErrGRPCKeyNotFound // an operation that is none: etcd's answer
}

// puts says whether the Txn may put something. Nested Txns do not count, as in etcd.
func puts(r *pb.TxnRequest) bool {
	isPut := func(op *pb.RequestOp) bool { return op.GetRequestPut() != nil }
	return slices.ContainsFunc(r.Success, isPut) || slices.ContainsFunc(r.Failure, isPut)
}

// readOnly says whether the Txn can change nothing. A nested Txn is taken for one that may, as in etcd.
func readOnly(r *pb.TxnRequest) bool {
	isOther := func(op *pb.RequestOp) bool { return op.GetRequestRange() == nil }
	return !slices.ContainsFunc(r.Success, isOther) && !slices.ContainsFunc(r.Failure, isOther)
}
