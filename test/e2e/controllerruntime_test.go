package e2e

import (
	"strings"
	"testing"
)

const gardenDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gardens.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: gardens, singular: garden, kind: Garden}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, required: [gardener], properties: {gardener: {type: string}}}
          status: {type: object, properties: {by: {type: string}, gardens: {type: integer}}}
`

// TestControllerRuntime runs two managers of a controller made with controller-runtime: one leads, and when it is gone, the other one.
func TestControllerRuntime(t *testing.T) {
	t.Parallel()
	manager, s := build(t, "controller-runtime", "."), start(t, t.TempDir())
	s.kubectlIn(t, gardenDefinition, "apply", "-f", "-")
	s.kubectl(t, "wait", "crd", "gardens.example.com", "--for=condition=Established", "--timeout=30s")
	in := "--namespace=" + s.namespace(t, "gardens")
	create := func(name, gardener string) {
		t.Helper()
		s.kubectlIn(t, "apiVersion: example.com/v1\nkind: Garden\nmetadata: {name: "+name+"}\nspec: {gardener: "+gardener+"}\n", "create", in, "-f", "-")
	}
	// reconciled waits until a manager has seen the garden, and checks which one and how many gardens have its gardener.
	reconciled := func(name, by, gardens string) {
		t.Helper()
		s.kubectl(t, "wait", "garden", name, in, "--for=jsonpath={.status.by}", "--timeout=80s")
		if got := s.kubectl(t, "get", "garden", name, in, "-o", "jsonpath={.status.by} {.status.gardens}"); got != by+" "+gardens {
			t.Errorf("garden %s has the status %q, want %s %s", name, got, by, gardens)
		}
	}

	stop := run(t, manager, "--kubeconfig="+s.kubeconfig, "--name=first")
	create("a", "ann")
	reconciled("a", "first", "1")
	run(t, manager, "--kubeconfig="+s.kubeconfig, "--name=second")
	create("b", "bob")
	reconciled("b", "first", "1")
	create("c", "ann")
	reconciled("c", "first", "2") // from the index

	owner := s.kubectl(t, "get", "configmap", "a", in, "-o", "jsonpath={.metadata.ownerReferences[0].kind}/{.metadata.ownerReferences[0].name} {.metadata.ownerReferences[0].controller}")
	if owner != "Garden/a true" {
		t.Errorf("the ConfigMap belongs to %q", owner)
	}
	s.kubectl(t, "delete", "configmap", "a", in)
	s.kubectl(t, "wait", "configmap", "a", in, "--for=create", "--timeout=30s")

	stop() // killed, it does not give its lease back
	create("d", "bob")
	reconciled("d", "second", "2")
	if got := s.kubectl(t, "get", "lease", "gardener", "--namespace=kube-system", "-o", "jsonpath={.spec.leaseTransitions}"); got != "1" {
		t.Errorf("the lease went over %s times, want once", got)
	}

	// The finalizer has its say, then the garbage collector.
	s.kubectl(t, "delete", "garden", "a", in, "--timeout=60s")
	s.kubectl(t, "wait", "configmap", "a", in, "--for=delete", "--timeout=60s")
	left := strings.Fields(s.kubectl(t, "get", "configmaps", in, "-o", "jsonpath={.items[*].metadata.name}"))
	if got := strings.Join(left, " "); got != "b c d farewell-a kube-root-ca.crt" {
		t.Errorf("the ConfigMaps are %s", got)
	}
}
