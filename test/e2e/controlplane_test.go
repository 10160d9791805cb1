package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// run starts a program that serves until the test ends, and is then asked to end.
func run(t *testing.T, path string, args ...string) {
	t.Helper()
	var log buffer
	program := exec.Command(path, args...)
	program.Stdout, program.Stderr = &log, &log
	program.Env = append(program.Environ(), "HOME="+t.TempDir())
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = program.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = program.Wait()                          // upstream's commands end as they like
		if t.Failed() {
			t.Logf("%s %s:\n%s", filepath.Base(path), args[0], log.String())
		}
	})
}

// buildKwok builds kwok, and returns with it the files that say how its nodes and pods live.
func buildKwok(t *testing.T) (program, stages string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "kwok")
	for _, command := range []*exec.Cmd{
		exec.Command("go", "build", "-ldflags=-s -w", "-o", program, "sigs.k8s.io/kwok/cmd/kwok"),
		exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"),
	} {
		command.Dir = "../kwok" // a module of its own: kwok is made of another release of Kubernetes
		command.Stderr = os.Stderr
		out, err := command.Output()
		if err != nil {
			t.Fatalf("cannot build kwok: %v", err)
		}
		stages = strings.TrimSpace(string(out))
	}
	var files []string
	for _, kind := range []string{"node/fast/node-*.yaml", "node/heartbeat-with-lease/node-*.yaml", "pod/fast/pod-*.yaml"} {
		found, err := filepath.Glob(filepath.Join(stages, "kustomize", "stage", kind))
		if err != nil || len(found) == 0 {
			t.Fatalf("kwok has no stages %s (%v)", kind, err)
		}
		files = append(files, found...)
	}
	return program, strings.Join(files, ",")
}

// TestControlPlane runs the three programs of a control plane with nothing configured but their ports, and kwok, which plays
// the nodes: a Deployment becomes ready.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	kwok, stages := buildKwok(t)

	dir := t.TempDir()
	s := start(t, dir)
	run(t, kubase, "controller-manager", "--data-dir="+dir, fmt.Sprintf("--secure-port=%d", freePort(t)))
	run(t, kubase, "scheduler", "--data-dir="+dir, fmt.Sprintf("--secure-port=%d", freePort(t)))
	run(t, kwok, "--kubeconfig="+s.kubeconfig, "--manage-all-nodes", "--config="+stages)

	eventually(t, "the API server leaves its controllers to the controller manager", func() error { return s.runsControllers(t, false) })
	for _, name := range []string{"node-a", "node-b"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}}}
		if _, err := s.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.namespace(t, "work")
	in := "--namespace=work"
	s.kubectlIn(t, deployment, "apply", in, "-f", "-")
	s.kubectl(t, "rollout", "status", "deployment/web", in, "--timeout=80s")
	contains(t, s.kubectl(t, "get", "deployment", "web", in), "2/2")
	contains(t, s.kubectl(t, "get", "nodes"), "node-a", "node-b", "Ready")
	nodes := s.kubectl(t, "get", "pods", in, "-o", "jsonpath={.items[*].spec.nodeName}")
	contains(t, nodes, "node-a", "node-b") // one on each

	s.kubectl(t, "expose", "deployment", "web", in, "--port=80")
	s.kubectl(t, "wait", "endpointslice", in, "--selector=kubernetes.io/service-name=web", "--for=jsonpath={.endpoints[1].conditions.ready}=true", "--timeout=30s")
	s.kubectl(t, "scale", "deployment", "web", in, "--replicas=5")
	s.kubectl(t, "rollout", "status", "deployment/web", in, "--timeout=80s")
	s.kubectl(t, "delete", "namespace", "work", "--timeout=80s")
}

// TestControlPlaneNeedsAServer: without an API server's files the other programs say what is missing.
func TestControlPlaneNeedsAServer(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"controller-manager", "scheduler"} {
		lines := failure(t, program, "--data-dir="+t.TempDir())
		if len(lines) != 1 {
			t.Errorf("kubase %s says %q, want one line", program, lines)
		}
		contains(t, lines[0], "no kubeconfig in", "start `kubase apiserver` first")
	}
}
