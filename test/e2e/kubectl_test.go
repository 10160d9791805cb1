package e2e

import (
	"strings"
	"testing"
)

// contains fails unless text has every one of the words.
func contains(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q is not in\n%s", word, text)
		}
	}
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {tier: front}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: one, image: "example.com/one:1"}
      - {name: two, image: "example.com/two:1"}
`

func testKubectl(t *testing.T, s *server) {
	contains(t, s.kubectl(t, "version"), "Server Version: v1.37.2+kubase.")
	s.kubectl(t, "wait", "service/kubernetes", "--for=create", "--timeout=30s")
	contains(t, s.kubectl(t, "get", "ns,svc,apiservices"),
		"namespace/kube-system", "service/kubernetes", "10.43.0.1", "v1.apps", "True")
	contains(t, s.kubectl(t, "explain", "deployment.spec.replicas"), "FIELD: replicas <integer>")
	contains(t, s.kubectl(t, "api-resources", "--verbs=list"), "deployments", "customresourcedefinitions")

	s.kubectl(t, "create", "namespace", "shell")
	ns := "--namespace=shell"
	contains(t, s.kubectlIn(t, deployment, "apply", ns, "-f", "-"), "deployment.apps/web created")
	contains(t, s.kubectlIn(t, deployment, "apply", ns, "-f", "-"), "deployment.apps/web unchanged")

	// A table, as the server prints it.
	contains(t, s.kubectl(t, "get", "deployments", ns, "-o", "wide"), "READY", "UP-TO-DATE", "0/2", "one,two", "app=web")
	// A difference is exit code 1.
	changed := strings.Replace(deployment, "replicas: 2", "replicas: 5", 1)
	diff, _, err := s.tryKubectl(changed, "diff", ns, "-f", "-")
	if err == nil {
		t.Error("kubectl diff found no difference")
	}
	contains(t, diff, "-  replicas: 2", "+  replicas: 5")

	// Dry runs change nothing.
	contains(t, s.kubectlIn(t, changed, "apply", ns, "-f", "-", "--dry-run=server"), "configured (server dry run)")
	contains(t, s.kubectl(t, "create", "configmap", "ghost", ns, "--dry-run=server"), "created (server dry run)")
	if out := s.kubectl(t, "get", "configmaps", "ghost", ns, "--ignore-not-found", "-o", "name"); out != "" {
		t.Errorf("a dry run created %s", out)
	}
	contains(t, s.kubectl(t, "get", "deployment", "web", ns, "-o", "jsonpath={.spec.replicas}"), "2")

	s.kubectl(t, "scale", "deployment", "web", ns, "--replicas=3")
	s.kubectl(t, "label", "deployment", "web", ns, "tier=back", "--overwrite")
	s.kubectl(t, "annotate", "deployment", "web", ns, "note=x")
	s.kubectl(t, "wait", "deployment", "web", ns, "--for=jsonpath={.spec.replicas}=3", "--timeout=30s")
	if out, errs, err := s.tryKubectl("", "create", "deployment", "web", ns, "--image=x"); err == nil {
		t.Errorf("a second deployment of the name was created: %s", out)
	} else {
		contains(t, errs, "already exists")
	}

	s.kubectl(t, "delete", "deployment", "web", ns, "--wait=false")
	s.kubectl(t, "wait", "deployment", "web", ns, "--for=delete", "--timeout=30s")
	contains(t, s.kubectl(t, "get", "deployments", ns, "-o", "name")+"empty", "empty")
	if _, errs, err := s.tryKubectl("", "get", "deployment", "web", ns); err == nil {
		t.Error("a deleted deployment can be read")
	} else {
		contains(t, errs, "NotFound")
	}
}
