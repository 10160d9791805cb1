package etcdshim

import (
	"context"
	"errors"
	"io"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// maxLeaseTTL is etcd's longest TTL, in seconds.
const maxLeaseTTL = 9_000_000_000

type leaseServer struct {
	*server
	pb.UnsafeLeaseServer
}

func (s *leaseServer) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	if err := s.checkQuota(ctx); err != nil {
		return nil, err
	}
	if _, err := s.permitNow(ctx, named); err != nil {
		return nil, err
	}
	if err := s.checkAlarms(true); err != nil {
		return nil, err
	}
	if r.TTL > maxLeaseTTL {
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	}
	lease, err := s.store.LeaseGrant(ctx, sqlstore.LeaseID(r.ID), r.TTL)
	if err != nil {
		return nil, s.rpcError(err)
	}
	return &pb.LeaseGrantResponse{Header: s.header(s.store.Revision()), ID: int64(lease.ID), TTL: lease.TTL}, nil
}

func (s *leaseServer) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	if _, err := s.permitNow(ctx, named); err != nil {
		return nil, err
	}
	if err := s.checkAlarms(false); err != nil {
		return nil, err
	}
	if _, err := s.permitNow(ctx, s.mayEndLease(ctx, r.ID)); err != nil {
		return nil, err
	}
	revision, err := s.store.LeaseRevoke(ctx, sqlstore.LeaseID(r.ID))
	if err != nil {
		return nil, s.rpcError(err)
	}
	return &pb.LeaseRevokeResponse{Header: s.header(revision)}, nil
}

func (s *leaseServer) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	return s.receive(stream.Context(), func() error {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		if _, err := s.permitNow(stream.Context(), both(named, s.mayEndLease(stream.Context(), r.ID))); err != nil {
			return err
		}
		// The header's revision is from before the renewal: a client must not see a lease alive at a revision at which it
		// was revoked.
		out := &pb.LeaseKeepAliveResponse{Header: s.header(s.store.Revision()), ID: r.ID}
		lease, err := s.store.LeaseKeepAlive(stream.Context(), sqlstore.LeaseID(r.ID))
		if err != nil && !errors.Is(err, sqlstore.ErrLeaseNotFound) {
			return s.rpcError(err)
		}
		out.TTL = lease.TTL // 0 if there is no such lease
		return stream.Send(out)
	})
}

// receive calls one again and again until it fails, the client is done, or the server stops.
func (s *server) receive(ctx context.Context, one func() error) error {
	ended := make(chan error, 1)
	go func() {
		for {
			if err := one(); err != nil {
				ended <- err
				return
			}
		}
	}()
	select {
	case err := <-ended:
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stopping.Done():
		return rpctypes.ErrGRPCStopped
	}
}

func (s *leaseServer) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	may := rule(named)
	if r.Keys {
		may = both(named, s.maySeeLease(ctx, r.ID))
	}
	if _, err := s.permitNow(ctx, may); err != nil {
		return nil, err
	}
	lease, keys, err := s.store.LeaseTimeToLive(ctx, sqlstore.LeaseID(r.ID), r.Keys)
	out := &pb.LeaseTimeToLiveResponse{Header: s.header(s.store.Revision()), ID: r.ID}
	switch {
	case errors.Is(err, sqlstore.ErrLeaseNotFound):
		out.TTL = -1
	case err != nil:
		return nil, s.rpcError(err)
	default:
		out.TTL = int64(lease.Remaining / time.Second)
		out.GrantedTTL = lease.TTL
		out.Keys = keys
	}
	return out, nil
}

func (s *leaseServer) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	ids, err := s.store.LeaseList(ctx)
	if err != nil {
		return nil, s.rpcError(err)
	}
	if _, err := s.permitNow(ctx, s.maySeeLeases(ctx, ids)); err != nil {
		return nil, err
	}
	out := &pb.LeaseLeasesResponse{Header: s.header(s.store.Revision()), Leases: make([]*pb.LeaseStatus, len(ids))}
	for i, id := range ids {
		out.Leases[i] = &pb.LeaseStatus{ID: int64(id)}
	}
	return out, nil
}
