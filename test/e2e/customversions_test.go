package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// targetDefinition has an address as one string in v1, which is stored, and as host and port in v2. It wants the path /convert.
const targetDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: targets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: targets, singular: target, kind: Target}
  conversion:
    strategy: Webhook
    webhook: {conversionReviewVersions: [v1], clientConfig: %s}
  versions:
  - name: v1
    served: true
    storage: %t
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [address]
            properties: {address: {type: string}}
          status: &status
            type: object
            properties: {seen: {type: integer}}
  - name: v2
    served: true
    storage: %t
    subresources: {status: {}}
    selectableFields: [{jsonPath: .spec.host}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [host]
            properties:
              host: {type: string, x-kubernetes-validations: [{rule: self == oldSelf, message: the host stays}]}
              port: {type: string, default: "80"}
          status: *status
`

// convert answers for targets. A host called "lost" cannot be converted.
func convert(_ string, review *apiextensionsv1.ConversionReview) {
	review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, object := range review.Request.Objects {
		converted, err := convertTarget(object.Raw, review.Request.DesiredAPIVersion)
		if err != nil {
			review.Response.ConvertedObjects = nil
			review.Response.Result = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
			return
		}
		review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Object: converted})
	}
}

func convertTarget(raw []byte, version string) (*unstructured.Unstructured, error) {
	target := &unstructured.Unstructured{}
	if err := json.Unmarshal(raw, &target.Object); err != nil {
		return nil, err
	}
	target.SetAPIVersion(version)
	spec, _, err := unstructured.NestedStringMap(target.Object, "spec")
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(version, "/v1") {
		spec = map[string]string{"address": net.JoinHostPort(spec["host"], spec["port"])}
	} else {
		host, port, err := net.SplitHostPort(spec["address"])
		if err != nil {
			return nil, err
		}
		if host == "lost" {
			return nil, errors.New("this host is lost")
		}
		spec = map[string]string{"host": host, "port": port}
	}
	return target, unstructured.SetNestedStringMap(target.Object, spec, "spec")
}

// testCustomVersions writes each of two versions and reads both; then the version that is stored changes.
func testCustomVersions(t *testing.T, s *server) {
	ctx := t.Context()
	ns := s.namespace(t, "versions")
	hook := startWebhook(t, convert)
	define := func(v1Stored bool) {
		s.kubectlIn(t, fmt.Sprintf(targetDefinition, hook.clientConfig("/convert"), v1Stored, !v1Stored), "apply", "-f", "-")
	}
	define(true)
	s.kubectl(t, "wait", "crd", "targets.example.com", "--for=condition=Established", "--timeout=30s")
	client, err := dynamic.NewForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	targets := func(version string) dynamic.ResourceInterface {
		return client.Resource(schema.GroupVersionResource{Group: "example.com", Version: version, Resource: "targets"}).Namespace(ns)
	}
	create := func(version, name string, spec map[string]any) (*unstructured.Unstructured, error) {
		return targets(version).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/" + version, "kind": "Target", "metadata": map[string]any{"name": name}, "spec": spec,
		}}, metav1.CreateOptions{})
	}
	expect := func(version, name string, want map[string]any) {
		t.Helper()
		got, err := targets(version).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got.Object["spec"]); diff != "" || got.GetAPIVersion() != "example.com/"+version {
			t.Errorf("%s as %s is %s (-want +got):\n%s", name, version, got.GetAPIVersion(), diff)
		}
	}
	// stored returns what the datastore has, as apiVersion and spec.
	store := etcdClient(t, "unix://"+filepath.Join(s.dir, "datastore.sock"), nil)
	stored := func(name string) string {
		t.Helper()
		got, err := store.Get(ctx, "/registry/example.com/targets/"+ns+"/"+name)
		if err != nil || len(got.Kvs) != 1 {
			t.Fatalf("%s in the datastore: %v, %v", name, got, err)
		}
		var object struct {
			APIVersion string          `json:"apiVersion"`
			Spec       json.RawMessage `json:"spec"`
		}
		if err := json.Unmarshal(got.Kvs[0].Value, &object); err != nil {
			t.Fatal(err)
		}
		return object.APIVersion + " " + string(object.Spec)
	}

	eventually(t, "targets are served", func() error {
		_, err := create("v1", "old", map[string]any{"address": "a:1"})
		return err
	})
	created, err := create("v2", "new", map[string]any{"host": "b", "unknown": "pruned"})
	if err != nil {
		t.Fatal(err)
	}
	expect("v1", "old", map[string]any{"address": "a:1"})
	expect("v2", "old", map[string]any{"host": "a", "port": "1"})
	expect("v1", "new", map[string]any{"address": "b:80"}) // the default of v2
	expect("v2", "new", map[string]any{"host": "b", "port": "80"})
	if got, want := stored("new"), `example.com/v1 {"address":"b:80"}`; got != want {
		t.Errorf("stored is %s, want %s", got, want)
	}

	// A rule of v2 compares what was with what comes, so the old object is converted for it.
	_, err = targets("v2").Patch(ctx, "old", types.MergePatchType, []byte(`{"spec":{"host":"c"}}`), metav1.PatchOptions{})
	says(t, err, "spec.host", "the host stays")
	if _, err := targets("v2").Patch(ctx, "old", types.MergePatchType, []byte(`{"spec":{"port":"2"}}`), metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	expect("v1", "old", map[string]any{"address": "a:2"})

	if err := unstructured.SetNestedField(created.Object, int64(7), "status", "seen"); err != nil {
		t.Fatal(err)
	}
	if err := unstructured.SetNestedField(created.Object, "9", "spec", "port"); err != nil {
		t.Fatal(err)
	}
	if _, err := targets("v2").UpdateStatus(ctx, created, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("v2", "new", map[string]any{"host": "b", "port": "80"}) // the status alone changed
	seen, err := targets("v1").Get(ctx, "new", metav1.GetOptions{})
	if err != nil || !cmp.Equal(seen.Object["status"], map[string]any{"seen": int64(7)}) {
		t.Errorf("the status is %v (%v), want 7 seen", seen.Object["status"], err)
	}

	selected, err := targets("v2").List(ctx, metav1.ListOptions{FieldSelector: "spec.host=b"})
	if err != nil || len(selected.Items) != 1 || selected.Items[0].GetName() != "new" {
		t.Errorf("selected by host: %v (%v)", selected, err)
	}
	_, err = targets("v1").List(ctx, metav1.ListOptions{FieldSelector: "spec.host=b"})
	says(t, err, "field label not supported: spec.host")

	// From now on v2 is stored: of old objects as soon as somebody writes them.
	define(false)
	eventually(t, "v2 is stored", func() error {
		// A write that changes nothing is none, unless it is stored in another way.
		if _, err := targets("v1").Patch(ctx, "new", types.MergePatchType, []byte("{}"), metav1.PatchOptions{}); err != nil {
			return err
		}
		if got, want := stored("new"), `example.com/v2 {"host":"b","port":"80"}`; got != want {
			return fmt.Errorf("it is %s, want %s", got, want)
		}
		return nil
	})
	if got, want := stored("old"), `example.com/v1 {"address":"a:2"}`; got != want {
		t.Errorf("stored is %s, want %s", got, want)
	}
	expect("v1", "old", map[string]any{"address": "a:2"})
	expect("v2", "old", map[string]any{"host": "a", "port": "2"})
	s.expectEvent(t, targets("v2"), "spec.host=a", func() {
		if err := targets("v1").Delete(ctx, "old", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}, "DELETED example.com/v2 old")

	_, err = create("v1", "lost", map[string]any{"address": "lost:1"})
	says(t, err, "conversion webhook for example.com/v1, Kind=Target failed: this host is lost")
	definition := s.kubectl(t, "get", "crd", "targets.example.com", "-o", "jsonpath={.status.storedVersions}")
	if definition != `["v1","v2"]` {
		t.Errorf("versions that may be stored: %s", definition)
	}
	s.kubectl(t, "delete", "crd", "targets.example.com", "--timeout=60s")
}

// expectEvent watches the objects that a field selector chooses while something is done, and wants this event first.
func (s *server) expectEvent(t *testing.T, resource dynamic.ResourceInterface, selector string, do func(), want string) {
	t.Helper()
	list, err := resource.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watcher, err := resource.Watch(ctx, metav1.ListOptions{FieldSelector: selector, ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	do()
	event, open := <-watcher.ResultChan()
	if !open {
		t.Fatalf("the watch ended, want %s", want)
	}
	object, ok := event.Object.(*unstructured.Unstructured)
	if !ok {
		t.Fatalf("the watch had %v, want %s", event.Object, want)
	}
	if got := fmt.Sprintf("%s %s %s", event.Type, object.GetAPIVersion(), object.GetName()); got != want {
		t.Errorf("the watch had %s, want %s", got, want)
	}
}
