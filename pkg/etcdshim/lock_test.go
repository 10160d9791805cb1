package etcdshim_test

import (
	"context"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"

	"github.com/kubase/kubase/pkg/etcdshim"
)

// What locks answer is compared with etcd in test/conformance.
func TestShutdownEndsWaitingForALock(t *testing.T) {
	a := serve(t, etcdshim.Options{})
	locks := v3lockpb.NewLockClient(a.conn)
	for id := range int64(2) {
		if _, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: id + 1, TTL: 1000}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := locks.Lock(t.Context(), &v3lockpb.LockRequest{Name: []byte("l"), Lease: 1}); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := locks.Lock(t.Context(), &v3lockpb.LockRequest{Name: []byte("l"), Lease: 2})
		waiting <- err
	}()
	for {
		r, err := a.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("l/"), RangeEnd: []byte("l0")})
		if err != nil {
			t.Fatal(err)
		}
		if r.Count == 2 {
			break
		}
	}
	const patience = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	a.server.Shutdown(ctx)
	if err := <-waiting; err == nil {
		t.Error("the lock was got although another one holds it")
	}
	if took := time.Since(began); took > patience/2 {
		t.Errorf("shutdown took %s", took)
	}
}
