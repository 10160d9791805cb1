package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// TestStopWhileStarting asks the server to end as soon as it has its port, long before it is ready.
func TestStopWhileStarting(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	s := launch(t, t.TempDir(), fmt.Sprintf("--secure-port=%d", port))
	s.begin(t)
	go func() { s.err = s.process.Wait(); close(s.ended) }()
	eventually(t, "kubase listens", func() error {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		return conn.Close()
	})
	s.stop(t)
	if s.log.String() != "" {
		t.Errorf("a stop is no reason to say\n%s", s.log)
	}
}

// TestOpenWatchDoesNotHoldUpStop has a client that watches and would go on doing so.
func TestOpenWatchDoesNotHoldUpStop(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	watcher, err := s.client.CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	began := time.Now()
	s.stop(t)
	// Upstream's defaults wait a minute.
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the stop took %s", took)
	}
}

// TestInPlaceOfKubeAPIServer runs the program under the name of the one it replaces, with the flags of a cluster that
// already is: its own keys, certificates and etcd.
func TestInPlaceOfKubeAPIServer(t *testing.T) {
	t.Parallel()
	link := filepath.Join(t.TempDir(), "kube-apiserver")
	if err := os.Symlink(kubase, link); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{link, kubase} {
		version, err := exec.Command(program, "--version").Output()
		if err != nil || !strings.HasPrefix(string(version), "Kubernetes v1.37.2+kubase.") {
			t.Errorf("%s --version says %q (%v)", filepath.Base(program), version, err)
		}
	}

	// The files of a first server stand for those of the cluster.
	first := start(t, t.TempDir())
	first.stop(t)
	file := func(name string) string { return filepath.Join(first.dir, "pki", name) }
	port, dir := freePort(t), t.TempDir()
	s := &server{log: &buffer{}, ended: make(chan struct{})}
	s.process = exec.Command(link,
		"--etcd-servers="+startEtcd(t), fmt.Sprintf("--secure-port=%d", port), "--bind-address=127.0.0.1", "--advertise-address=192.0.2.1",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--service-cluster-ip-range=10.96.0.0/16",
		"--client-ca-file="+file("ca.crt"), "--tls-cert-file="+file("apiserver.crt"), "--tls-private-key-file="+file("apiserver.key"),
		"--kubelet-client-certificate="+file("apiserver-kubelet-client.crt"), "--kubelet-client-key="+file("apiserver-kubelet-client.key"),
		"--service-account-issuer=https://example.com", "--service-account-key-file="+file("sa.key"), "--service-account-signing-key-file="+file("sa.key"),
		"--requestheader-client-ca-file="+file("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+file("front-proxy-client.crt"), "--proxy-client-key-file="+file("front-proxy-client.key"),
		"--allow-privileged=true")
	s.process.Dir = dir
	s.process.Stdout, s.process.Stderr = s.log, s.log
	s.begin(t)
	go func() { s.err = s.process.Wait(); close(s.ended) }()

	config, err := clientcmd.BuildConfigFromFlags("", first.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.Host = fmt.Sprintf("https://127.0.0.1:%d", port)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "kube-apiserver is ready", func() error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(t.Context()).Error()
	})
	eventually(t, "the service has its address", func() error {
		service, err := client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err == nil && service.Spec.ClusterIP != "10.96.0.1" {
			err = fmt.Errorf("address %q", service.Spec.ClusterIP)
		}
		return err
	})
	eventually(t, "the endpoint of the server is published", func() error {
		slice, err := client.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err == nil && (len(slice.Endpoints) != 1 || slice.Endpoints[0].Addresses[0] != "192.0.2.1") {
			err = fmt.Errorf("endpoints %v", slice.Endpoints)
		}
		return err
	})
	if err := s.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-s.ended
	if s.err != nil {
		t.Errorf("kube-apiserver ended with %v", s.err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("the working directory has %v (%v), want nothing: the user brought everything", left, err)
	}
}
