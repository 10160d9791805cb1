package e2e

import (
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// run starts a program that serves until stop is called or the test ends. Then it is killed: asked to end, servers made of upstream's parts
// wait a minute for open watches.
func run(t *testing.T, path string, args ...string) (stop func()) {
	t.Helper()
	var log buffer
	program := exec.Command(path, args...)
	program.Stdout, program.Stderr = &log, &log
	program.Env = append(program.Environ(), "HOME="+t.TempDir())
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = program.Process.Kill() // it may have ended
		_ = program.Wait()         // killed
	})
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Logf("%s %s:\n%s", filepath.Base(path), args[0], log.String())
		}
	})
	return stop
}

// build builds a program that a directory of test/ names in a module of its own, made of the program's own versions of what both use.
func build(t *testing.T, module, pkg string, ldflags ...string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), path.Base(module))
	command := exec.Command("go", "build", "-ldflags=-s -w "+strings.Join(ldflags, " "), "-o", program, pkg)
	command.Dir = filepath.Join("..", filepath.FromSlash(module))
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("cannot build %s: %v\n%s", pkg, err, out)
	}
	return program
}

// moduleDir is where the files of such a program are.
func moduleDir(t *testing.T, module, path string) string {
	t.Helper()
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", path)
	list.Dir = filepath.Join("..", module)
	out, err := list.Output()
	if err != nil {
		t.Fatalf("there is no module %s: %v", path, err)
	}
	return strings.TrimSpace(string(out))
}

// kwokStages are the files of kwok's module that say how its nodes and pods live.
func kwokStages(t *testing.T) string {
	t.Helper()
	dir := moduleDir(t, "kwok", "sigs.k8s.io/kwok")
	var files []string
	for _, kind := range []string{"node/fast/node-*.yaml", "node/heartbeat-with-lease/node-*.yaml", "pod/fast/pod-*.yaml"} {
		found, err := filepath.Glob(filepath.Join(dir, "kustomize", "stage", kind))
		if err != nil || len(found) == 0 {
			t.Fatalf("kwok has no stages %s (%v)", kind, err)
		}
		files = append(files, found...)
	}
	return strings.Join(files, ",")
}

// TestControlPlane runs the three programs of a control plane with nothing configured but their ports, and kwok, which plays
// the nodes: a Deployment becomes ready.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	kwok := build(t, "kwok", "sigs.k8s.io/kwok/cmd/kwok")

	dir := t.TempDir()
	s := start(t, dir)
	run(t, kubase, "controller-manager", "--data-dir="+dir, fmt.Sprintf("--secure-port=%d", freePort(t)))
	run(t, kubase, "scheduler", "--data-dir="+dir, fmt.Sprintf("--secure-port=%d", freePort(t)))
	run(t, kwok, "--kubeconfig="+s.kubeconfig, "--manage-all-nodes", "--config="+kwokStages(t))

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
