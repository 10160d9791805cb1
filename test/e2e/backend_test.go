package e2e

import (
	"fmt"
	"net/url"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/kubase/kubase/test/postgrestest"
)

// backends are the places for objects. Each returns the flags that make a new, empty one the server's.
var backends = []struct {
	name  string
	flags func(*testing.T) []string
}{
	{"sqlite", func(*testing.T) []string { return nil }}, // what nothing configured means
	{"postgres", func(t *testing.T) []string {
		return []string{"--storage-backend=postgres", "--datastore-dsn=" + postgrestest.Database(t)}
	}},
	{"etcd", func(t *testing.T) []string {
		return []string{"--storage-backend=etcd3", "--etcd-servers=" + startEtcd(t)}
	}},
}

// startEtcd runs a real etcd for the test and returns its URL.
func startEtcd(t *testing.T) string {
	t.Helper()
	config := embed.NewConfig()
	config.Dir = t.TempDir()
	config.LogLevel = "panic"
	client := url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", freePort(t))}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	<-etcd.Server.ReadyNotify()
	return client.String()
}

// TestBackends does the same on each backend.
func TestBackends(t *testing.T) {
	for _, backend := range backends {
		t.Run(backend.name, func(t *testing.T) {
			t.Parallel()
			dir, flags := t.TempDir(), backend.flags(t)
			s := start(t, dir, flags...)
			for _, c := range []struct {
				name string
				test func(*testing.T, *server)
			}{
				{"Kubectl", testKubectl},
				{"Patch", testPatch},
				{"ServerSideApply", testServerSideApply},
				{"Selectors", testSelectors},
				{"CustomResources", testCustomResources},
				{"Services", testServices},
				{"BindingAndEviction", testBindingAndEviction},
				{"Tokens", testTokens},
				{"RBAC", testRBAC},
				{"Datastores", func(t *testing.T, s *server) { testDatastores(t, s, backend.name) }},
				{"NamespaceDeletion", testNamespaceDeletion},
				{"ThousandObjects", testThousandObjects},
			} {
				t.Run(c.name, func(t *testing.T) { c.test(t, s) })
			}
			t.Run("Restart", func(t *testing.T) { testRestart(t, s, dir, flags) })
		})
	}
}
