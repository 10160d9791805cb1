package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	s := runKubeAPIServer(t, link, first, "--etcd-servers="+startEtcd(t))
	eventually(t, "the service has its address", func() error {
		service, err := s.client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err == nil && service.Spec.ClusterIP != "10.96.0.1" {
			err = fmt.Errorf("address %q", service.Spec.ClusterIP)
		}
		return err
	})
	eventually(t, "the endpoint of the server is published", func() error {
		slice, err := s.client.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err == nil && (len(slice.Endpoints) != 1 || slice.Endpoints[0].Addresses[0] != "192.0.2.1") {
			err = fmt.Errorf("endpoints %v", slice.Endpoints)
		}
		return err
	})
	s.terminate(t)
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 0 {
		t.Errorf("the working directory has %v (%v), want nothing: the user brought everything", left, err)
	}
}
