package e2e

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestKubectlVersions uses a server with kubectl of its own release and of the two before.
func TestKubectlVersions(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	s.runningPod(t, s.namespace(t, "node"), "127.0.0.1", startKubelet(t, filepath.Join(s.dir, "pki", "ca.crt")).port(), "192.0.2.10")
	for _, version := range []string{"v1.35.10", "v1.36.6", "v1.37.2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			as := *s
			if minor := version[:len("v1.00")]; minor != "v1.37" {
				as.oldKubectl = build(t, "kubectl/"+minor, ".", "-X k8s.io/component-base/version.gitVersion="+version)
			}
			testKubectlVersion(t, &as, version)
		})
	}
}

func testKubectlVersion(t *testing.T, s *server, version string) {
	name := strings.ReplaceAll(version, ".", "-")
	ns := "--namespace=" + name
	contains(t, s.kubectl(t, "version"), "Client Version: "+version, "Server Version: v1.37.2+kubase.")
	contains(t, s.kubectl(t, "auth", "whoami"), "kubernetes-admin", "system:masters")
	contains(t, s.kubectl(t, "api-resources"), "deployments", "datastores", "datastore.kubase.io/v1alpha1")
	contains(t, s.kubectl(t, "explain", "deployment.spec.strategy.rollingUpdate"), "FIELD: rollingUpdate", "maxSurge")

	s.kubectl(t, "create", "namespace", name)
	contains(t, s.kubectlIn(t, deployment, "apply", ns, "-f", "-"), "deployment.apps/web created")
	changed := strings.Replace(deployment, "replicas: 2", "replicas: 5", 1)
	diff, _, err := s.tryKubectl(changed, "diff", ns, "-f", "-")
	if err == nil {
		t.Error("diff found no difference")
	}
	contains(t, diff, "-  replicas: 2", "+  replicas: 5")
	contains(t, s.kubectlIn(t, changed, "apply", ns, "-f", "-"), "deployment.apps/web configured")

	// Somebody else's field is a conflict, until it is taken by force.
	const owned = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: 7}\n"
	if _, errs, err := s.tryKubectl(owned, "apply", ns, "--server-side", "--field-manager=other", "-f", "-"); err == nil {
		t.Error("server-side apply took a field of another manager")
	} else {
		contains(t, errs, `conflict with "kubectl-client-side-apply"`, ".spec.replicas")
	}
	contains(t, s.kubectlIn(t, owned, "apply", ns, "--server-side", "--field-manager=other", "--force-conflicts", "-f", "-"), "web serverside-applied")

	for kind, patch := range map[string]string{
		"merge":     `{"metadata":{"annotations":{"merge":"yes"}}}`,
		"json":      `[{"op":"add","path":"/spec/minReadySeconds","value":3}]`,
		"strategic": `{"spec":{"template":{"spec":{"containers":[{"name":"two","image":"example.com/two:2"}]}}}}`,
	} {
		s.kubectl(t, "patch", "deployment", "web", ns, "--type="+kind, "--patch="+patch)
	}
	s.kubectl(t, "label", "deployment", "web", ns, "tier=back", "--overwrite")
	got := s.kubectl(t, "get", "deployments", ns, "-l", "tier=back", "-o", "jsonpath={range .items[*]}{.spec.replicas} {.metadata.annotations.merge} "+
		"{.spec.minReadySeconds} {.spec.template.spec.containers[*].image}{end}")
	if want := "7 yes 3 example.com/one:1 example.com/two:2"; got != want {
		t.Errorf("the deployment has %q, want %q", got, want)
	}

	// What a controller would say makes the rollout complete.
	generation := s.kubectl(t, "get", "deployment", "web", ns, "-o", "jsonpath={.metadata.generation}")
	s.kubectl(t, "patch", "deployment", "web", ns, "--subresource=status", "--type=merge",
		`--patch={"status":{"observedGeneration":`+generation+`,"replicas":7,"updatedReplicas":7,"readyReplicas":7,"availableReplicas":7}}`)
	contains(t, s.kubectl(t, "rollout", "status", "deployment/web", ns, "--timeout=30s"), "successfully rolled out")
	contains(t, s.kubectl(t, "get", "deployments", ns, "-o", "wide"), "UP-TO-DATE", "7/7", "one,two")
	s.kubectl(t, "wait", "deployment", "web", ns, "--for=jsonpath={.status.readyReplicas}=7", "--timeout=30s")

	contains(t, s.kubectl(t, "auth", "can-i", "delete", "pods", ns), "yes")
	if out, _, err := s.tryKubectl("", "auth", "can-i", "delete", "pods", ns, "--as=jane"); err == nil || !strings.Contains(out, "no") {
		t.Errorf("jane may delete pods: %q (%v)", out, err)
	}
	if got := s.kubectl(t, "logs", "a", "--namespace=node", "--tail=7"); got != "log of main, last 7 lines\n" {
		t.Errorf("logs: %q", got)
	}
	if got := s.kubectlIn(t, "hello\n", "exec", "-i", "a", "--namespace=node", "--", "upper"); got != "HELLO\n" {
		t.Errorf("exec: %q", got)
	}

	s.kubectl(t, "delete", "deployment", "web", ns, "--timeout=60s")
	s.kubectl(t, "delete", "namespace", name, "--timeout=60s")
	if _, errs, err := s.tryKubectl("", "get", "namespace", name); err == nil {
		t.Error("a deleted namespace can be read")
	} else {
		contains(t, errs, "NotFound")
	}
}
