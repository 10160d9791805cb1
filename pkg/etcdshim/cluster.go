package etcdshim

import (
	"context"
	"net/url"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
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

// MemberAdd is refused.
func (s *clusterServer) MemberAdd(_ context.Context, r *pb.MemberAddRequest) (*pb.MemberAddResponse, error) {
	for _, text := range r.PeerURLs {
		if u, err := url.Parse(text); err != nil || u.Host == "" {
			return nil, rpctypes.ErrGRPCMemberBadURLs
		}
	}
	if len(r.PeerURLs) == 0 {
		return nil, rpctypes.ErrGRPCMemberBadURLs
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
