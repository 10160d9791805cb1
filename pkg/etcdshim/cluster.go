package etcdshim

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type clusterServer struct {
	*server
	pb.UnsafeClusterServer
}

// errOneMember has the code of what etcd answers when its members do not allow a change.
var errOneMember = status.Error(codes.FailedPrecondition,
	"etcdserver: each server is a cluster of one member: to have more servers, start them on the same database")

// MemberList lists this server: it is a cluster of its own, whatever other servers share its database.
func (s *clusterServer) MemberList(context.Context, *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	return &pb.MemberListResponse{
		Header: s.memberHeader(),
		Members: []*pb.Member{{
			ID: s.member, Name: s.opts.Name, ClientURLs: s.opts.ClientURLs,
		}},
	}, nil
}

// memberHeader has no revision, as in etcd.
func (s *clusterServer) memberHeader() *pb.ResponseHeader { return s.header(0) }

// MemberAdd is refused. What is wrong with the request comes first, as in etcd.
func (s *clusterServer) MemberAdd(ctx context.Context, r *pb.MemberAddRequest) (*pb.MemberAddResponse, error) {
	if _, err := types.NewURLs(r.PeerURLs); err != nil {
		return nil, rpctypes.ErrGRPCMemberBadURLs
	}
	if _, err := s.permitNow(ctx, isAdmin); err != nil {
		return nil, err
	}
	return nil, errOneMember
}

// MemberRemove is refused.
func (s *clusterServer) MemberRemove(_ context.Context, r *pb.MemberRemoveRequest) (*pb.MemberRemoveResponse, error) {
	return nil, s.refuseMember(r.ID)
}

// MemberUpdate is refused: there are no peers, and what MemberList shows comes from flags.
func (s *clusterServer) MemberUpdate(_ context.Context, r *pb.MemberUpdateRequest) (*pb.MemberUpdateResponse, error) {
	return nil, s.refuseMember(r.ID)
}

// MemberPromote is refused: the one member is no learner.
func (s *clusterServer) MemberPromote(_ context.Context, r *pb.MemberPromoteRequest) (*pb.MemberPromoteResponse, error) {
	if r.ID == s.member {
		return nil, rpctypes.ErrGRPCMemberNotLearner
	}
	return nil, rpctypes.ErrGRPCMemberNotFound
}

func (s *clusterServer) refuseMember(id uint64) error {
	if id == s.member {
		return errOneMember
	}
	return rpctypes.ErrGRPCMemberNotFound
}
