package etcdshim

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/version"
)

type maintenanceServer struct {
	*server
	pb.UnimplementedMaintenanceServer
	walking chan struct{} // held by the call that walks through the whole database
}

func newMaintenanceServer(s *server) *maintenanceServer {
	return &maintenanceServer{server: s, walking: make(chan struct{}, 1)}
}

// Status says what a single server that is always the leader says. Of raft, the indexes are the revision.
func (s *maintenanceServer) Status(ctx context.Context, _ *pb.StatusRequest) (*pb.StatusResponse, error) {
	total, inUse, err := s.store.Size(ctx)
	if err != nil {
		return nil, s.rpcError(err)
	}
	revision := s.store.Revision()
	return &pb.StatusResponse{
		Header:           s.header(revision),
		Version:          version.Version,
		StorageVersion:   version.Version,
		DbSize:           total,
		DbSizeInUse:      inUse,
		DbSizeQuota:      s.opts.QuotaBytes,
		Leader:           s.member,
		RaftIndex:        uint64(revision),
		RaftAppliedIndex: uint64(revision),
		RaftTerm:         raftTerm,
		DowngradeInfo:    &pb.DowngradeInfo{},
	}, nil
}
