package e2e

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

const widgetDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wd]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}
    additionalPrinterColumns:
    - {name: Size, type: string, jsonPath: .spec.size}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [replicas]
            properties:
              replicas: {type: integer, minimum: 0, maximum: 10}
              size: {type: string, default: medium, enum: [small, medium, large]}
            x-kubernetes-validations:
            - {rule: "self.size != 'small' || self.replicas < 5", message: "many small widgets get lost"}
          status:
            type: object
            properties: {replicas: {type: integer}}
`

func testCustomResources(t *testing.T, s *server) {
	ctx := t.Context()
	ns := s.namespace(t, "custom")
	s.kubectlIn(t, widgetDefinition, "apply", "-f", "-")
	s.kubectl(t, "wait", "crd", "widgets.example.com", "--for=condition=Established", "--timeout=30s")
	client, err := dynamic.NewForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	widgets := client.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}).Namespace(ns)
	widget := func(name string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": name}, "spec": spec,
		}}
	}

	created, err := widgets.Create(ctx, widget("a", map[string]any{"replicas": int64(2), "unknown": "pruned"}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if size, _, _ := unstructured.NestedString(created.Object, "spec", "size"); size != "medium" {
		t.Errorf("the size is %q, want the default", size)
	}
	if _, found, _ := unstructured.NestedString(created.Object, "spec", "unknown"); found {
		t.Error("a field that the schema does not know was kept")
	}
	for name, spec := range map[string]map[string]any{
		"required": {}, "maximum": {"replicas": int64(11)}, "enum": {"replicas": int64(1), "size": "huge"}, "rule": {"replicas": int64(5), "size": "small"},
	} {
		if _, err := widgets.Create(ctx, widget(name, spec), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}

	// The status is written by its own subresource only, and raises no generation.
	if err := unstructured.SetNestedField(created.Object, int64(2), "status", "replicas"); err != nil {
		t.Fatal(err)
	}
	updated, err := widgets.UpdateStatus(ctx, created, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if updated.GetGeneration() != created.GetGeneration() {
		t.Errorf("an update of the status raised the generation to %d", updated.GetGeneration())
	}
	patch := []byte(`{"spec":{"replicas":4}}`)
	if _, err := widgets.Patch(ctx, "a", types.MergePatchType, patch, metav1.PatchOptions{}, "scale"); err != nil {
		t.Fatal(err)
	}
	scaled, err := widgets.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec, _, _ := unstructured.NestedInt64(scaled.Object, "spec", "replicas")
	status, _, _ := unstructured.NestedInt64(scaled.Object, "status", "replicas")
	if spec != 4 || status != 2 || scaled.GetGeneration() != created.GetGeneration()+1 {
		t.Errorf("%d replicas, %d in the status, generation %d; want 4, 2 and %d", spec, status, scaled.GetGeneration(), created.GetGeneration()+1)
	}

	contains(t, s.kubectl(t, "get", "wd", "--namespace", ns), "NAME", "SIZE", "medium")
	eventually(t, "kubectl explains the custom resource", func() error {
		_, _, err := s.tryKubectl("", "explain", "widget.spec.size")
		return err
	})
	s.kubectl(t, "delete", "crd", "widgets.example.com", "--timeout=60s")
	if _, err := widgets.List(ctx, metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("widgets outlive their definition: %v", err)
	}
}
