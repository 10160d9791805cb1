package etcdshim

import (
	"context"
	"regexp"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/api/v3/version"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubase/kubase/pkg/sqlstore"
)

type maintenanceServer struct {
	*server
	pb.UnsafeMaintenanceServer
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

// Defragment gives free space back as far as that goes while others write: see the engines. The answer has no header, as in etcd.
func (s *maintenanceServer) Defragment(ctx context.Context, _ *pb.DefragmentRequest) (*pb.DefragmentResponse, error) {
	if err := s.store.Defragment(ctx); err != nil {
		return nil, s.rpcError(err)
	}
	return &pb.DefragmentResponse{}, nil
}

// MoveLeader knows one member, which leads. The answer has no header, as in etcd.
func (s *maintenanceServer) MoveLeader(_ context.Context, r *pb.MoveLeaderRequest) (*pb.MoveLeaderResponse, error) {
	if r.TargetID != s.member {
		return nil, rpctypes.ErrGRPCBadLeaderTransferee
	}
	return &pb.MoveLeaderResponse{}, nil
}

// Downgrade knows no other version to go to. The schema of the database goes forward only.
func (s *maintenanceServer) Downgrade(_ context.Context, r *pb.DowngradeRequest) (*pb.DowngradeResponse, error) {
	switch r.Action {
	case pb.DowngradeRequest_VALIDATE, pb.DowngradeRequest_ENABLE:
		if !versionFormat.MatchString(r.Version) {
			return nil, rpctypes.ErrGRPCWrongDowngradeVersionFormat
		}
		return nil, rpctypes.ErrGRPCInvalidDowngradeTargetVersion
	case pb.DowngradeRequest_CANCEL: // there is none to cancel, which etcd does not mind
		return &pb.DowngradeResponse{Header: s.header(s.store.Revision()), Version: version.Cluster(version.Version)}, nil
	}
	return nil, errUnknownMethod
}

// versionFormat is what etcd takes for a version: the patch may be missing.
var versionFormat = regexp.MustCompile(`^[0-9]+\.[0-9]+(\.[0-9]+.*)?$`)

// errUnknownMethod is what etcd says to an action that it does not know.
var errUnknownMethod = status.Error(codes.Unknown, "etcdserver: unknown method")
