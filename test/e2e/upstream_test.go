package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// runKubeAPIServer runs a program that takes kube-apiserver's flags, with the keys and certificates that a kubase made, until it is ready.
func runKubeAPIServer(t *testing.T, program string, keys *server, flags ...string) *server {
	t.Helper()
	file := func(name string) string { return filepath.Join(keys.dir, "pki", name) }
	port := freePort(t)
	s := &server{dir: t.TempDir(), kubeconfig: keys.kubeconfig, log: &buffer{}, ended: make(chan struct{})}
	s.process = exec.Command(program, append([]string{
		fmt.Sprintf("--secure-port=%d", port), "--bind-address=127.0.0.1", "--advertise-address=192.0.2.1",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--service-cluster-ip-range=10.96.0.0/16",
		"--client-ca-file=" + file("ca.crt"), "--tls-cert-file=" + file("apiserver.crt"), "--tls-private-key-file=" + file("apiserver.key"),
		"--kubelet-client-certificate=" + file("apiserver-kubelet-client.crt"), "--kubelet-client-key=" + file("apiserver-kubelet-client.key"),
		"--service-account-issuer=https://example.com", "--service-account-key-file=" + file("sa.key"), "--service-account-signing-key-file=" + file("sa.key"),
		"--requestheader-client-ca-file=" + file("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + file("front-proxy-client.crt"), "--proxy-client-key-file=" + file("front-proxy-client.key"),
		"--allow-privileged=true",
	}, flags...)...)
	s.process.Dir = s.dir
	s.process.Env = append(os.Environ(), "KUBE_WATCHCACHE_CONSISTENCY_CHECKER=true")
	s.process.Stdout, s.process.Stderr = s.log, s.log
	s.begin(t)
	go func() { s.err = s.process.Wait(); close(s.ended) }()
	var err error
	if s.config, err = clientcmd.BuildConfigFromFlags("", keys.kubeconfig); err != nil {
		t.Fatal(err)
	}
	s.config.Host, s.config.QPS = fmt.Sprintf("https://127.0.0.1:%d", port), -1
	if s.client, err = kubernetes.NewForConfig(s.config); err != nil {
		t.Fatal(err)
	}
	eventually(t, "kube-apiserver is ready", func() error {
		return s.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(t.Context()).Error()
	})
	return s
}

// terminate ends a kube-apiserver as its init system does.
func (s *server) terminate(t *testing.T) {
	t.Helper()
	if err := s.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-s.ended
	if s.err != nil {
		t.Errorf("kube-apiserver ended with %v", s.err)
	}
}

// TestUpstreamKubeAPIServer runs upstream's kube-apiserver on `kubase etcd`: on SQLite as a user with a certificate, on Postgres in the
// clear. Its watch caches are compared with storage all the while, and it panics if they differ.
func TestUpstreamKubeAPIServer(t *testing.T) {
	t.Parallel()
	keys := start(t, t.TempDir())
	keys.stop(t)
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		certs := makeCertificates(t)
		address := fmt.Sprintf("https://127.0.0.1:%d", freePort(t))
		testUpstream(t, keys, engines["sqlite"](t), address, func() {
			protectFor(t, certs, address)
		}, []string{"--cert-file=" + certs.serving.CertFile, "--key-file=" + certs.serving.KeyFile, "--trusted-ca-file=" + certs.ca.CertFile, "--client-cert-auth"},
			[]string{"--etcd-cafile=" + certs.ca.CertFile, "--etcd-certfile=" + certs.client.CertFile, "--etcd-keyfile=" + certs.client.KeyFile})
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		address := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
		testUpstream(t, keys, engines["postgres"](t), address, func() {}, nil, nil)
	})
}

// protectFor turns authentication on where the user of the client's certificate has the role root.
func protectFor(t *testing.T, certs certificates, address string) {
	t.Helper()
	client := etcdClient(t, address, certs.clientInfo())
	ctx := t.Context()
	protect(t, client)
	login, err := client.Authenticate(ctx, "root", "r")
	if err != nil {
		t.Fatal(err)
	}
	ctx = metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, login.Token)
	if _, err := client.UserAddWithOptions(ctx, certificateName, "", &clientv3.UserAddOptions{NoPassword: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.UserGrantRole(ctx, certificateName, "root"); err != nil {
		t.Fatal(err)
	}
}

func testUpstream(t *testing.T, keys *server, dsn, address string, prepare func(), etcdFlags, flags []string) {
	metrics := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	startEtcdShim(t, append([]string{
		"--datastore-dsn=" + dsn, "--listen-client-urls=" + address, "--listen-metrics-urls=" + metrics, cheapPasswords,
	}, etcdFlags...)...)
	prepare()
	s := runKubeAPIServer(t, kubeAPIServer, keys, append([]string{"--etcd-servers=" + address}, flags...)...)

	configMaps := s.client.CoreV1().ConfigMaps("default")
	const n = 100
	for i := range n {
		name := fmt.Sprintf("c%02d", i)
		c, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err == nil && i%2 == 0 {
			c.Data = map[string]string{"i": strconv.Itoa(i)}
			_, err = configMaps.Update(t.Context(), c, metav1.UpdateOptions{})
		}
		if err == nil && i%4 == 0 {
			err = configMaps.Delete(t.Context(), name, metav1.DeleteOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	list, err := configMaps.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != n*3/4 {
		t.Errorf("%d config maps, %v, want %d", len(list.Items), err, n*3/4)
	}
	before := s.checks(t, "success")
	eventually(t, "the watch cache is compared with storage again", func() error {
		if s.checks(t, "success") < before+2 {
			return fmt.Errorf("%d comparisons", before)
		}
		return nil
	})
	if failed := s.checks(t, "failure"); failed > 0 {
		t.Errorf("%d comparisons found a difference", failed)
	}
	streamed := regexp.MustCompile(`grpc_server_handled_total\{grpc_code="OK",grpc_method="RangeStream",[^}]*\} ([0-9]+)`)
	if found := streamed.FindStringSubmatch(httpGet(t, metrics+"/metrics")); found == nil || found[1] == "0" {
		t.Errorf("the lists were not streamed: %v", found)
	}
	s.terminate(t)
	if strings.Contains(s.log.String(), "Cache consistency check failed") {
		t.Errorf("the watch cache differed from storage:\n%s", s.log)
	}
}

// checks says how often the watch cache of config maps was compared with storage, and the comparison ended like this.
func (s *server) checks(t *testing.T, status string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	metrics, err := s.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`apiserver_storage_consistency_checks_total\{group="",resource="configmaps",status="` + status + `"\} ([0-9]+)`)
	found := line.FindSubmatch(metrics)
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
