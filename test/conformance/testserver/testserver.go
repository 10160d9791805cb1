// Package testserver stands in for k8s.io/apiserver/pkg/storage/etcd3/testserver when Kubernetes' own storage tests are run against
// kubase: it has the same functions, but the server that they start keeps its data in SQL.
package testserver

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"

	"github.com/kubase/kubase/pkg/etcdshim"
	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/pkg/sqlstore/postgres"
	"github.com/kubase/kubase/pkg/sqlstore/sqlite"
	"github.com/kubase/kubase/test/postgrestest"
)

// EngineVariable is the environment variable that chooses the engine: sqlite or postgres.
const EngineVariable = "KUBASE_TEST_ENGINE"

// NewTestConfig returns the part of an etcd configuration that RunEtcd looks at: tests change it and read its client URL.
func NewTestConfig(t testing.TB) *embed.Config {
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := embed.NewConfig()
	cfg.ListenClientUrls = []url.URL{{Scheme: "http", Host: listener.Addr().String()}}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// RunEtcd serves an empty store until the test ends and returns a client that records what it is asked for.
func RunEtcd(t testing.TB, cfg *embed.Config) *kubernetes.Client {
	t.Helper()
	if cfg == nil {
		cfg = NewTestConfig(t)
	}
	store, err := sqlstore.Open(context.Background(), openEngine(t), sqlstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	auth, err := etcdshim.NewAuth(context.Background(), store, etcdshim.AuthOptions{BcryptCost: int(cfg.BcryptCost)})
	if err != nil {
		t.Fatal(err)
	}
	address := cfg.ListenClientUrls[0]
	options := etcdshim.Options{
		ClientURLs: []string{address.String()}, MaxRequestBytes: int(cfg.MaxRequestBytes), MaxTxnOps: int(cfg.MaxTxnOps),
		WatchProgressInterval: cfg.WatchProgressNotifyInterval, Auth: auth, ClientCertAuth: cfg.ClientTLSInfo.ClientCertAuth,
	}
	if address.Scheme == "https" {
		if options.TLS, err = cfg.ClientTLSInfo.ServerConfig(); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", address.Host)
	if err != nil {
		t.Fatal(err)
	}
	server := etcdshim.NewServer(store, options)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		server.Shutdown(ctx)
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it began
			t.Error(err)
		}
		if err := errors.Join(auth.Close(), store.Close()); err != nil {
			t.Error(err)
		}
	})
	return connect(t, address.String(), cfg.ClientTLSInfo)
}

func openEngine(t testing.TB) sqlstore.Engine {
	var engine sqlstore.Engine
	var err error
	switch name := os.Getenv(EngineVariable); name {
	case "sqlite":
		engine, err = sqlite.Open(context.Background(), filepath.Join(t.TempDir(), "kubase.db"), sqlite.Options{})
	case "postgres":
		engine, err = postgres.Open(context.Background(), postgrestest.Database(t), postgres.Options{})
	default:
		t.Fatalf("%s is %q, want sqlite or postgres", EngineVariable, name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

func connect(t testing.TB, endpoint string, info transport.TLSInfo) *kubernetes.Client {
	tlsConfig, err := info.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.New(clientv3.Config{
		Endpoints: []string{endpoint}, TLS: tlsConfig, DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	recorder := storagetesting.NewKubernetesRecorder(client.Kubernetes)
	client.KV = storagetesting.NewKVRecorder(client.KV, recorder)
	client.Kubernetes = recorder
	return client
}
