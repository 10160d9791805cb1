package etcdshim

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/auth"
	"google.golang.org/grpc"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// rule says whether who asks may do something. It is called only while authentication is on; who shows nothing has no name.
type rule func(state *authState, who *auth.AuthInfo) error

// check applies a rule.
func (state *authState) check(ctx context.Context, certificates bool, r rule) error {
	if !state.IsAuthEnabled() {
		return nil
	}
	who, err := state.AuthInfoFromCtx(ctx)
	if err != nil {
		return err
	}
	if who == nil && certificates {
		who = state.AuthInfoFromTLS(ctx)
	}
	if who == nil {
		who = &auth.AuthInfo{}
	}
	return r(state, who)
}

// permit applies a rule by what is known, and says at which generation it holds. What it refuses is refused by the newest state.
func (s *server) permit(ctx context.Context, r rule) (generation int64, err error) {
	if s.opts.Auth == nil {
		return 0, nil
	}
	known := s.opts.Auth.current.Load()
	if known.check(ctx, s.opts.ClientCertAuth, r) == nil {
		return known.generation, nil
	}
	return s.permitNow(ctx, r)
}

// permitNow applies a rule by the newest state. It is for what does not read or write the store in a way that shows the generation.
func (s *server) permitNow(ctx context.Context, r rule) (generation int64, err error) {
	if s.opts.Auth == nil {
		return 0, nil
	}
	newest, err := s.opts.Auth.newest(ctx)
	if err == nil {
		err = newest.check(ctx, s.opts.ClientCertAuth, r)
	}
	if err != nil {
		return 0, s.rpcError(err)
	}
	return newest.generation, nil
}

// permitted applies a rule and then calls do with the generation at which it holds, again if do finds another one.
func (s *server) permitted(ctx context.Context, r rule, do func(generation int64) error) error {
	for {
		generation, err := s.permit(ctx, r)
		if err != nil {
			return err
		}
		err = do(generation)
		if !errors.Is(err, sqlstore.ErrAuthChanged) {
			return err
		}
		if _, err := s.opts.Auth.newest(ctx); err != nil {
			return s.rpcError(err)
		}
	}
}

// changed is ErrAuthChanged if a read has seen another generation than the one by which it was permitted.
func changed(permitted, seen int64) error {
	if permitted != 0 && permitted != seen {
		return sqlstore.ErrAuthChanged
	}
	return nil
}

// The rules, which are etcd's: package apply of its server.

// anybody refuses only tokens that are none, as each call does.
func anybody(*authState, *auth.AuthInfo) error { return nil }

func named(_ *authState, who *auth.AuthInfo) error {
	if who.Username == "" {
		return auth.ErrUserEmpty
	}
	return nil
}

func isAdmin(state *authState, who *auth.AuthInfo) error { return state.IsAdminPermitted(who) }

func mayRange(key, end []byte) rule {
	return func(state *authState, who *auth.AuthInfo) error { return state.IsRangePermitted(who, key, end) }
}

// mayPut: who attaches a key to a lease must be allowed to write all that ends with it.
func (s *server) mayPut(ctx context.Context, r *pb.PutRequest) rule {
	return func(state *authState, who *auth.AuthInfo) error {
		if err := state.IsPutPermitted(who, r.Key); err != nil {
			return err
		}
		if err := s.mayEndLease(ctx, r.Lease)(state, who); err != nil {
			return err
		}
		if r.PrevKv {
			return state.IsRangePermitted(who, r.Key, nil)
		}
		return nil
	}
}

func mayDelete(r *pb.DeleteRangeRequest) rule {
	return func(state *authState, who *auth.AuthInfo) error {
		if err := state.IsDeleteRangePermitted(who, r.Key, r.RangeEnd); err != nil {
			return err
		}
		if r.PrevKv {
			return state.IsRangePermitted(who, r.Key, r.RangeEnd)
		}
		return nil
	}
}

// mayTxn: all of it, whatever branch will be taken.
func (s *server) mayTxn(ctx context.Context, r *pb.TxnRequest) rule {
	return func(state *authState, who *auth.AuthInfo) error {
		for _, c := range r.Compare {
			if err := state.IsRangePermitted(who, c.Key, c.RangeEnd); err != nil {
				return err
			}
		}
		for _, branch := range [][]*pb.RequestOp{r.Success, r.Failure} {
			for _, op := range branch {
				if err := s.mayOp(ctx, op)(state, who); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

func (s *server) mayOp(ctx context.Context, op *pb.RequestOp) rule {
	switch o := op.Request.(type) {
	case *pb.RequestOp_RequestRange:
		return mayRange(o.RequestRange.Key, o.RequestRange.RangeEnd)
	case *pb.RequestOp_RequestPut:
		return s.mayPut(ctx, o.RequestPut)
	case *pb.RequestOp_RequestDeleteRange:
		return mayDelete(o.RequestDeleteRange)
	case *pb.RequestOp_RequestTxn:
		return s.mayTxn(ctx, o.RequestTxn)
	}
	return func(*authState, *auth.AuthInfo) error { return nil } // there is no other operation: checkTxn
}

// mayEndLease: who ends or renews a lease must be allowed to write its keys.
func (s *server) mayEndLease(ctx context.Context, id int64) rule {
	return s.leaseRule(ctx, id, func(state *authState, who *auth.AuthInfo, key []byte) error { return state.IsPutPermitted(who, key) })
}

// maySeeLease: who sees a lease's keys must be allowed to read them.
func (s *server) maySeeLease(ctx context.Context, id int64) rule {
	return s.leaseRule(ctx, id, func(state *authState, who *auth.AuthInfo, key []byte) error {
		return state.IsRangePermitted(who, key, []byte{})
	})
}

func (s *server) leaseRule(ctx context.Context, id int64, each func(*authState, *auth.AuthInfo, []byte) error) rule {
	return func(state *authState, who *auth.AuthInfo) error {
		if id == 0 || state.IsAdminPermitted(who) == nil {
			return nil
		}
		_, keys, err := s.store.LeaseTimeToLive(ctx, sqlstore.LeaseID(id), true)
		if errors.Is(err, sqlstore.ErrLeaseNotFound) {
			return nil
		}
		for _, key := range keys {
			if err := each(state, who, key); err != nil {
				return err
			}
		}
		return err
	}
}

func (s *server) maySeeLeases(ctx context.Context, ids []sqlstore.LeaseID) rule {
	return func(state *authState, who *auth.AuthInfo) error {
		if err := named(state, who); err != nil {
			return err
		}
		for _, id := range ids {
			if err := s.maySeeLease(ctx, int64(id))(state, who); err != nil {
				return err
			}
		}
		return nil
	}
}

// both applies two rules.
func both(first, second rule) rule {
	return func(state *authState, who *auth.AuthInfo) error {
		if err := first(state, who); err != nil {
			return err
		}
		return second(state, who)
	}
}

// methodRules are those of the calls that are the same for every request, and that no other service makes: see registerLocks.
var methodRules = map[string]rule{
	pb.KV_Compact_FullMethodName:             isAdmin,
	pb.Cluster_MemberRemove_FullMethodName:   isAdmin,
	pb.Cluster_MemberUpdate_FullMethodName:   isAdmin,
	pb.Cluster_MemberPromote_FullMethodName:  isAdmin,
	pb.Cluster_MemberList_FullMethodName:     named,
	pb.Maintenance_Defragment_FullMethodName: isAdmin,
	pb.Maintenance_Snapshot_FullMethodName:   isAdmin,
	pb.Maintenance_Hash_FullMethodName:       isAdmin,
	pb.Maintenance_HashKV_FullMethodName:     isAdmin,
	pb.Maintenance_MoveLeader_FullMethodName: isAdmin,
	pb.Maintenance_Downgrade_FullMethodName:  isAdmin,
	pb.Maintenance_Status_FullMethodName:     named,
}

// ruleFor is the rule that a call must pass before it begins; nil if it applies rules itself, or needs none.
func ruleFor(method string, request any) rule {
	if r, ok := request.(*pb.AlarmRequest); ok {
		if r.Action == pb.AlarmRequest_GET {
			return named
		}
		return isAdmin
	}
	return methodRules[method]
}

func (s *server) authorizeUnary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if r := ruleFor(info.FullMethod, request); r != nil {
		if _, err := s.permitNow(ctx, r); err != nil {
			return nil, err
		}
	}
	return handler(ctx, request)
}

func (s *server) authorizeStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if r := ruleFor(info.FullMethod, nil); r != nil {
		if _, err := s.permitNow(stream.Context(), r); err != nil {
			return err
		}
	}
	return handler(srv, stream)
}
