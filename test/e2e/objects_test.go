package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appsapply "k8s.io/client-go/applyconfigurations/apps/v1"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
)

// namespace makes a namespace for one test.
func (s *server) namespace(t *testing.T, name string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := s.client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return name
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/main:1"}}},
	}
}

func testPatch(t *testing.T, s *server) {
	ctx := t.Context()
	pods := s.client.CoreV1().Pods(s.namespace(t, "patch"))
	s.serviceAccount(t, "patch")
	if _, err := pods.Create(ctx, pod("a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind  types.PatchType
		patch string
		check func(*corev1.Pod) bool
	}{
		{types.JSONPatchType, `[{"op":"add","path":"/metadata/labels/json","value":"1"}]`, func(p *corev1.Pod) bool { return p.Labels["json"] == "1" }},
		{types.MergePatchType, `{"metadata":{"labels":{"merge":"1","json":null}}}`, func(p *corev1.Pod) bool {
			_, still := p.Labels["json"]
			return p.Labels["merge"] == "1" && !still
		}},
		{types.StrategicMergePatchType, `{"spec":{"containers":[{"name":"main","image":"example.com/main:2"}]}}`, func(p *corev1.Pod) bool {
			return len(p.Spec.Containers) == 1 && p.Spec.Containers[0].Image == "example.com/main:2"
		}},
	} {
		patched, err := pods.Patch(ctx, "a", c.kind, []byte(c.patch), metav1.PatchOptions{})
		if err != nil {
			t.Errorf("%s: %v", c.kind, err)
		} else if !c.check(patched) {
			t.Errorf("%s: got %v", c.kind, patched)
		}
	}
	// A patch with a stale resourceVersion is a conflict.
	_, err := pods.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"resourceVersion":"1","labels":{"x":"y"}}}`), metav1.PatchOptions{})
	if !apierrors.IsConflict(err) {
		t.Errorf("a patch of a stale version: %v, want a conflict", err)
	}
}

func testServerSideApply(t *testing.T, s *server) {
	ctx := t.Context()
	deployments := s.client.AppsV1().Deployments(s.namespace(t, "ssa"))
	desired := func(replicas int32) *appsapply.DeploymentApplyConfiguration {
		labels := map[string]string{"app": "web"}
		return appsapply.Deployment("web", "ssa").WithSpec(appsapply.DeploymentSpec().WithReplicas(replicas).
			WithSelector(metaapply.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(coreapply.PodTemplateSpec().WithLabels(labels).
				WithSpec(coreapply.PodSpec().WithContainers(coreapply.Container().WithName("main").WithImage("example.com/main:1")))))
	}
	if _, err := deployments.Apply(ctx, desired(2), metav1.ApplyOptions{FieldManager: "first"}); err != nil {
		t.Fatal(err)
	}
	_, err := deployments.Apply(ctx, desired(3), metav1.ApplyOptions{FieldManager: "second"})
	if !apierrors.IsConflict(err) {
		t.Errorf("a second manager took a field: %v, want a conflict", err)
	}
	got, err := deployments.Apply(ctx, desired(3), metav1.ApplyOptions{FieldManager: "second", Force: true})
	if err != nil {
		t.Fatal(err)
	}
	if *got.Spec.Replicas != 3 || len(got.ManagedFields) != 2 {
		t.Errorf("%d replicas and %d managers, want 3 and 2", *got.Spec.Replicas, len(got.ManagedFields))
	}
}

func testSelectors(t *testing.T, s *server) {
	ctx := t.Context()
	ns := s.namespace(t, "selectors")
	secrets := s.client.CoreV1().Secrets(ns)
	for name, kind := range map[string]corev1.SecretType{"a": "example.com/a", "b": "example.com/b", "c": "example.com/b"} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}, Type: kind}
		if _, err := secrets.Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		options metav1.ListOptions
		want    string
	}{
		{metav1.ListOptions{FieldSelector: "type=example.com/b"}, "b c "},
		{metav1.ListOptions{FieldSelector: "metadata.name=a"}, "a "},
		{metav1.ListOptions{LabelSelector: "name in (a, c)"}, "a c "},
		{metav1.ListOptions{FieldSelector: "type=example.com/b", LabelSelector: "name!=c"}, "b "},
	} {
		list, err := secrets.List(ctx, c.options)
		if err != nil {
			t.Fatal(err)
		}
		var got string
		for _, item := range list.Items {
			got += item.Name + " "
		}
		if got != c.want {
			t.Errorf("%q %q selects %q, want %q", c.options.FieldSelector, c.options.LabelSelector, got, c.want)
		}
	}
	if err := secrets.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "type=example.com/b"}); err != nil {
		t.Fatal(err)
	}
	if list, err := secrets.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 1 || list.Items[0].Name != "a" {
		t.Errorf("after the collection was deleted: %v, %v", list, err)
	}
}

// testThousandObjects makes many objects at once and reads them back, in one list and in pages.
func testThousandObjects(t *testing.T, s *server) {
	const count, workers, page = 1000, 16, 300
	ctx := t.Context()
	secrets := s.client.CoreV1().Secrets(s.namespace(t, "many"))
	var wait sync.WaitGroup
	for worker := range workers {
		wait.Go(func() {
			for i := worker; i < count; i += workers {
				object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("object-%04d", i)}, StringData: map[string]string{"i": fmt.Sprint(i)}}
				if _, err := secrets.Create(ctx, object, metav1.CreateOptions{}); err != nil {
					t.Errorf("object %d: %v", i, err)
				}
			}
		})
	}
	wait.Wait()

	all, err := secrets.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(all.Items) != count {
		t.Errorf("a list has %d objects, want %d", len(all.Items), count)
	}
	seen := 0
	options := metav1.ListOptions{Limit: page}
	for {
		list, err := secrets.List(ctx, options)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range list.Items {
			if want := fmt.Sprintf("object-%04d", seen); item.Name != want {
				t.Fatalf("object %d of the pages is %s, want %s", seen, item.Name, want)
			}
			seen++
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	if seen != count {
		t.Errorf("the pages have %d objects, want %d", seen, count)
	}
	if err := secrets.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if rest, err := secrets.List(context.Background(), metav1.ListOptions{}); err != nil || len(rest.Items) != 0 {
		t.Errorf("%d objects are left (%v)", len(rest.Items), err)
	}
}
