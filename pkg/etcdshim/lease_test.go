package etcdshim_test

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/kubase/kubase/pkg/etcdshim"
)

func TestLeaseLife(t *testing.T) {
	a := serve(t, etcdshim.Options{})
	grant, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: 7, TTL: 100})
	if err != nil || grant.ID != 7 || grant.TTL != 100 {
		t.Fatalf("grant: %v, %v", grant, err)
	}
	if _, err := a.kv.Put(t.Context(), &pb.PutRequest{Key: []byte("k"), Lease: 7}); err != nil {
		t.Fatal(err)
	}
	ttl, err := a.lease.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: 7, Keys: true})
	if err != nil || ttl.GrantedTTL != 100 || ttl.TTL < 90 || ttl.TTL > 100 || len(ttl.Keys) != 1 || string(ttl.Keys[0]) != "k" {
		t.Errorf("time to live: %v, %v", ttl, err)
	}
	list, err := a.lease.LeaseLeases(t.Context(), &pb.LeaseLeasesRequest{})
	if err != nil || len(list.Leases) != 1 || list.Leases[0].ID != 7 {
		t.Errorf("list: %v, %v", list, err)
	}
	alive, err := a.lease.LeaseKeepAlive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[int64]int64{7: 100, 8: 0} { // 0: there is no such lease
		if err := alive.Send(&pb.LeaseKeepAliveRequest{ID: id}); err != nil {
			t.Fatal(err)
		}
		if r, err := alive.Recv(); err != nil || r.ID != id || r.TTL != want {
			t.Errorf("keepalive of %d: %v, %v", id, r, err)
		}
	}
	if _, err := a.lease.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: 7}); err != nil {
		t.Fatal(err)
	}
	if got, err := a.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("k")}); err != nil || got.Count != 0 {
		t.Errorf("the key outlives its lease: %v, %v", got, err)
	}
	if gone, err := a.lease.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: 7}); err != nil || gone.TTL != -1 {
		t.Errorf("time to live of a revoked lease: %v, %v", gone, err)
	}
}

// A TTL below etcd's least one is raised to it, and its end deletes the key.
func TestLeaseExpires(t *testing.T) {
	a := serve(t, etcdshim.Options{})
	s := a.stream(t)
	s.create(&pb.WatchCreateRequest{Key: []byte("k")})
	s.recv()
	grant, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 1})
	if err != nil || grant.TTL != 2 || grant.ID == 0 {
		t.Fatalf("grant: %v, %v", grant, err)
	}
	if _, err := a.kv.Put(t.Context(), &pb.PutRequest{Key: []byte("k"), Lease: grant.ID}); err != nil {
		t.Fatal(err)
	}
	if r := s.recv(); r.Events[0].Kv.Lease != grant.ID {
		t.Errorf("the put's event has lease %d, want %d", r.Events[0].Kv.Lease, grant.ID)
	}
	if r := s.recv(); r.Events[0].Type != mvccpb.Event_DELETE {
		t.Errorf("got %v, want the key deleted by its lease's end", r)
	}
}
