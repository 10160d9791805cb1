package etcdshim

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

type clusterServer struct {
	*server
	pb.UnimplementedClusterServer
}

// MemberList lists this server: it is a cluster of its own, whatever other servers share its database.
func (s *clusterServer) MemberList(context.Context, *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	return &pb.MemberListResponse{
		Header: s.header(s.store.Revision()),
		Members: []*pb.Member{{
			ID: s.member, Name: s.opts.Name, ClientURLs: s.opts.ClientURLs,
		}},
	}, nil
}
