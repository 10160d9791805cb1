package etcdshim_test

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"

	"github.com/kubase/kubase/pkg/etcdshim"
	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/pkg/sqlstore/sqlite"
)

// api is a client of each service of one server.
type api struct {
	kv          pb.KVClient
	watch       pb.WatchClient
	lease       pb.LeaseClient
	maintenance pb.MaintenanceClient
	cluster     pb.ClusterClient
	conn        *grpc.ClientConn
	server      *etcdshim.Server
	dial        func() *grpc.ClientConn // another connection
	dialRaw     func(context.Context) (net.Conn, error)
}

// serve starts a server on an empty store in memory until the test ends.
func serve(t *testing.T, options etcdshim.Options) api {
	return serveStore(t, openStore(t), options)
}

func openStore(t *testing.T) *sqlstore.Store {
	engine, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "kubase.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := sqlstore.Open(t.Context(), engine, sqlstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func serveStore(t *testing.T, store *sqlstore.Store, options etcdshim.Options) api {
	listener := bufconn.Listen(64 << 10)
	server := etcdshim.NewServer(store, options)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	var conns []*grpc.ClientConn
	// The windows do not grow: what a client does not read stays with the server.
	window := []grpc.DialOption{grpc.WithInitialWindowSize(64 << 10), grpc.WithInitialConnWindowSize(1 << 20)}
	dial := func() *grpc.ClientConn {
		conn, err := grpc.NewClient("passthrough:///memory", append(window, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))...)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		return conn
	}
	conn := dial()
	t.Cleanup(func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		server.Shutdown(ctx)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	a := api{
		kv: pb.NewKVClient(conn), watch: pb.NewWatchClient(conn), lease: pb.NewLeaseClient(conn),
		maintenance: pb.NewMaintenanceClient(conn), cluster: pb.NewClusterClient(conn), conn: conn, server: server, dial: dial,
		dialRaw: listener.DialContext,
	}
	// The first call waits until the server serves.
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a api) put(t *testing.T, key, value string) int64 {
	t.Helper()
	r, err := a.kv.Put(t.Context(), &pb.PutRequest{Key: []byte(key), Value: []byte(value)})
	if err != nil {
		t.Fatal(err)
	}
	return r.Header.Revision
}
