package etcdshim

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/api/v3/version"

	"github.com/kubase/kubase/pkg/sqlstore"
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
	alarms, err := s.store.Alarms(ctx)
	if err != nil {
		return nil, s.rpcError(err)
	}
	var errs []string
	for _, a := range alarms {
		errs = append(errs, alarmMember(a).String())
	}
	revision := s.store.Revision()
	return &pb.StatusResponse{
		Header:           s.header(revision),
		Version:          version.Version,
		StorageVersion:   storageVersion,
		DbSize:           total,
		DbSizeInUse:      inUse,
		DbSizeQuota:      s.opts.QuotaBytes,
		Leader:           s.member,
		RaftIndex:        uint64(revision),
		RaftAppliedIndex: uint64(revision),
		RaftTerm:         raftTerm,
		DowngradeInfo:    &pb.DowngradeInfo{},
		Errors:           errs,
	}, nil
}

// walk calls fn with a snapshot. One call at a time walks through the database: more would take the connections that other reads need.
func (s *maintenanceServer) walk(ctx context.Context, fn func(sqlstore.Snapshot) error) error {
	select {
	case s.walking <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stopping.Done():
		return rpctypes.ErrGRPCStopped
	}
	defer func() { <-s.walking }()
	return s.store.Snapshot(ctx, fn)
}
