package e2e

import (
	"bufio"
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubase/kubase/pkg/server/pki"
	"github.com/kubase/kubase/test/postgrestest"
)

// etcdProcess is a running `kubase etcd`.
type etcdProcess struct {
	process *exec.Cmd
	log     *buffer
}

// startEtcdShim runs `kubase etcd` until it says that it is ready.
func startEtcdShim(t *testing.T, flags ...string) *etcdProcess {
	t.Helper()
	e := &etcdProcess{process: exec.Command(kubase, append([]string{"etcd"}, flags...)...), log: &buffer{}}
	e.process.Stderr = e.log
	out, err := e.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.process.Process.Kill() }) // it may have ended
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "kubase etcd is ready on ") {
		t.Fatalf("kubase etcd says %q (%v)\n%s", line, err, e.log)
	}
	return e
}

// stop ends it as an init system does, and expects it to end cleanly.
func (e *etcdProcess) stop(t *testing.T) {
	t.Helper()
	if err := e.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := e.process.Wait(); err != nil {
		t.Errorf("kubase etcd ended with %v\n%s", err, e.log)
	}
}

func etcdClient(t *testing.T, endpoint string, tls *transport.TLSInfo) *clientv3.Client {
	t.Helper()
	config := clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: patience, Logger: zap.NewNop()}
	if tls != nil {
		var err error
		if config.TLS, err = tls.ClientConfig(); err != nil {
			t.Fatal(err)
		}
	}
	client, err := clientv3.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() }) // its server may be gone
	return client
}

// engines name an empty database each time.
var engines = map[string]func(*testing.T) string{
	"sqlite":   func(t *testing.T) string { return "sqlite://" + filepath.Join(t.TempDir(), "kubase.db") },
	"postgres": func(t *testing.T) string { return postgrestest.Database(t) },
}

// TestEtcdAlone uses `kubase etcd` as an etcd client and an administrator do: over TCP and a socket, with metrics, across a restart.
func TestEtcdAlone(t *testing.T) {
	for name, dsn := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			socket := filepath.Join(t.TempDir(), "etcd.sock")
			address, metrics := fmt.Sprintf("http://127.0.0.1:%d", freePort(t)), fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
			flags := []string{
				"--datastore-dsn=" + dsn(t), "--listen-client-urls=" + address + ",unix://" + socket, "--listen-metrics-urls=" + metrics,
			}
			e := startEtcdShim(t, flags...)
			tcp, local := etcdClient(t, address, nil), etcdClient(t, "unix://"+socket, nil)
			put, err := tcp.Put(ctx, "key", "value")
			if err != nil {
				t.Fatal(err)
			}
			events := local.Watch(ctx, "key", clientv3.WithRev(put.Header.Revision))
			if got := <-events; got.Err() != nil || string(got.Events[0].Kv.Value) != "value" {
				t.Errorf("the watch over the socket sees %v, %v", got.Events, got.Err())
			}
			if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the socket has mode %v (%v), want 0600", info.Mode().Perm(), err)
			}
			members, err := tcp.MemberList(ctx)
			if err != nil || len(members.Members) != 1 || members.Members[0].ClientURLs[0] != address {
				t.Errorf("members: %v, %v", members, err)
			}
			contains(t, httpGet(t, metrics+"/metrics"), `grpc_server_handled_total{grpc_code="OK",grpc_method="Put"`,
				fmt.Sprintf("kubase_datastore_revision %d", put.Header.Revision), "kubase_datastore_up 1", fmt.Sprintf(`kubase_datastore_info{backend="%s",`, name))
			contains(t, httpGet(t, metrics+"/readyz?verbose"), fmt.Sprintf("[+]datastore ok: %s, revision %d, ", name, put.Header.Revision))
			if got := httpGet(t, metrics+"/readyz"); got != "ok\n" {
				t.Errorf("readyz says %q", got)
			}
			if got := httpGet(t, metrics+"/health"); got != `{"health":"true","reason":""}`+"\n" {
				t.Errorf("health says %q", got)
			}
			e.stop(t)

			startEtcdShim(t, flags...)
			got, err := etcdClient(t, address, nil).Get(ctx, "key")
			if err != nil || len(got.Kvs) != 1 || got.Kvs[0].ModRevision != put.Header.Revision {
				t.Errorf("after a restart: %v, %v", got, err)
			}
		})
	}
}

// certificateName is the common name of the client's certificate.
const certificateName = "apiserver"

// certificates are what mutual TLS on the loopback interface needs.
type certificates struct {
	ca, serving, client pki.Pair
}

func makeCertificates(t *testing.T) certificates {
	t.Helper()
	dir, err := pki.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := dir.CA("ca", "test")
	if err != nil {
		t.Fatal(err)
	}
	serving, err := dir.Certificate(ca, "server", pki.Request{
		CommonName: "etcd", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Usage: x509.ExtKeyUsageServerAuth,
	})
	if err != nil {
		t.Fatal(err)
	}
	client, err := dir.Certificate(ca, "client", pki.Request{CommonName: certificateName, Usage: x509.ExtKeyUsageClientAuth})
	if err != nil {
		t.Fatal(err)
	}
	return certificates{ca: ca.Pair, serving: serving, client: client}
}

func (c certificates) clientInfo() *transport.TLSInfo {
	return &transport.TLSInfo{TrustedCAFile: c.ca.CertFile, CertFile: c.client.CertFile, KeyFile: c.client.KeyFile}
}

// expectMutualTLS reads a key with the client's certificate, and expects to be kept out without one.
func (c certificates) expectMutualTLS(t *testing.T, address, key string) {
	t.Helper()
	stranger := etcdClient(t, address, &transport.TLSInfo{TrustedCAFile: c.ca.CertFile})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // the client would try for ever
	defer cancel()
	if _, err := stranger.Get(ctx, key); err == nil {
		t.Error("a client without a certificate is let in")
	}
	known := etcdClient(t, address, c.clientInfo())
	got, err := known.Get(t.Context(), key)
	if err != nil || len(got.Kvs) != 1 {
		t.Errorf("%s in the datastore: %v, %v", key, got, err)
	}
}

const defaultNamespace = "/registry/namespaces/default"

// TestEtcdForAPIServer has an API server keep its objects in a `kubase etcd` behind mutual TLS.
func TestEtcdForAPIServer(t *testing.T) {
	t.Parallel()
	certs := makeCertificates(t)
	address := fmt.Sprintf("https://127.0.0.1:%d", freePort(t))
	e := startEtcdShim(t, "--datastore-dsn=sqlite://"+filepath.Join(t.TempDir(), "kubase.db"), "--listen-client-urls="+address,
		"--cert-file="+certs.serving.CertFile, "--key-file="+certs.serving.KeyFile, "--trusted-ca-file="+certs.ca.CertFile, "--client-cert-auth")
	s := start(t, t.TempDir(), "--etcd-servers="+address,
		"--etcd-cafile="+certs.ca.CertFile, "--etcd-certfile="+certs.client.CertFile, "--etcd-keyfile="+certs.client.KeyFile)
	namespaces, err := s.client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(namespaces.Items) < 4 {
		t.Errorf("namespaces: %v, %v", namespaces, err)
	}
	certs.expectMutualTLS(t, address, defaultNamespace)
	s.stop(t)
	e.stop(t)
}

// TestDatastoreListen lets another process into the datastore of an API server: through a socket, and with mutual TLS.
func TestDatastoreListen(t *testing.T) {
	t.Run("socket", func(t *testing.T) {
		t.Parallel()
		socket := filepath.Join(t.TempDir(), "datastore.sock")
		start(t, t.TempDir(), "--datastore-listen=unix://"+socket)
		if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the socket has mode %v (%v), want 0600", info.Mode().Perm(), err)
		}
		got, err := etcdClient(t, "unix://"+socket, nil).Get(t.Context(), defaultNamespace)
		if err != nil || len(got.Kvs) != 1 {
			t.Errorf("the namespace in the datastore: %v, %v", got, err)
		}
	})
	t.Run("TLS", func(t *testing.T) {
		t.Parallel()
		certs := makeCertificates(t)
		address := fmt.Sprintf("https://127.0.0.1:%d", freePort(t))
		start(t, t.TempDir(), "--datastore-listen="+address, "--datastore-listen-cert-file="+certs.serving.CertFile,
			"--datastore-listen-key-file="+certs.serving.KeyFile, "--datastore-listen-trusted-ca-file="+certs.ca.CertFile)
		certs.expectMutualTLS(t, address, defaultNamespace)
	})
}

func TestEtcdFailures(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubase.db")
	startEtcdShim(t, "--datastore-dsn=sqlite://"+file, fmt.Sprintf("--listen-client-urls=http://127.0.0.1:%d", freePort(t)))
	for _, c := range []struct {
		name  string
		flags []string
		want  []string
	}{
		{"no DSN", nil, []string{"no datastore", "--datastore-dsn"}},
		{"file in use", []string{"--datastore-dsn=sqlite://" + file}, []string{file, "is in use by process"}},
		{"no certificate", []string{"--datastore-dsn=sqlite:///x", "--listen-client-urls=https://127.0.0.1:1"}, []string{"--cert-file"}},
		{"no URL", []string{"--datastore-dsn=sqlite:///x", "--listen-client-urls=127.0.0.1:1"}, []string{"--listen-client-urls", "127.0.0.1:1"}},
		{"no CA", []string{"--datastore-dsn=sqlite:///x", "--client-cert-auth"}, []string{"--trusted-ca-file"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			lines := failure(t, append([]string{"etcd"}, c.flags...)...)
			if len(lines) != 1 {
				t.Errorf("got %d lines, want one:\n%s", len(lines), strings.Join(lines, "\n"))
			}
			contains(t, lines[0], c.want...)
		})
	}
}

func httpGet(t *testing.T, url string) string {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
