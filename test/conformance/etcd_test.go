package conformance

import (
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apiserver/pkg/storage/etcd3/testserver"

	kubase "github.com/kubase/kubase/test/conformance/testserver"
)

// etcd is a real etcd that can be stopped and started again with what it has on disk.
type etcd struct {
	server
	t       *testing.T
	config  *embed.Config
	running *embed.Etcd
}

// startEtcd starts an etcd; change may change its configuration before. It ends with the test.
func startEtcd(t *testing.T, change func(*embed.Config)) *etcd {
	e := &etcd{t: t, config: testserver.NewTestConfig(t)}
	if change != nil {
		change(e.config)
	}
	e.start()
	t.Cleanup(func() { e.running.Close() })
	return e
}

func (e *etcd) start() {
	e.t.Helper()
	running, err := embed.StartEtcd(e.config)
	if err != nil {
		e.t.Fatal(err)
	}
	e.running = running
	select {
	case <-running.Server.ReadyNotify():
	case <-time.After(operationTimeout):
		running.Close()
		e.t.Fatal("etcd does not get ready")
	}
	conn, err := grpc.NewClient(e.config.ListenClientUrls[0].Host, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = conn.Close() })
	e.server = newServer("etcd", conn)
}

func (e *etcd) restart() {
	e.t.Helper()
	e.running.Close()
	e.start()
}

// startKubase starts kubase on an engine with an empty database.
func startKubase(t *testing.T, engine string) server {
	t.Setenv(kubase.EngineVariable, engine)
	return connectTo(t, engine, kubase.RunEtcd(t, nil))
}
