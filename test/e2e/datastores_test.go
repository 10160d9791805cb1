package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"

	"github.com/kubase/kubase/pkg/registry/datastore/v1alpha1"
)

// testDatastores looks at the datastore with kubectl, sees a write in it, and lets a viewer look.
func testDatastores(t *testing.T, s *server, backend string) {
	ctx := t.Context()
	kind := map[string]string{"etcd": "etcd3"}[backend]
	if kind == "" {
		kind = backend
	}
	contains(t, s.kubectl(t, "get", "datastores"), "NAME", "BACKEND", "READY", "REVISION", "KEYS", "SIZE", kind, "True")
	contains(t, s.kubectl(t, "explain", "datastore.status.revision"), "GROUP:      datastore.kubase.io", "FIELD: revision <integer>")

	get := func() (d v1alpha1.Datastore) {
		t.Helper()
		if err := json.Unmarshal([]byte(s.kubectl(t, "get", "datastore", kind, "-o", "json")), &d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	before := get()
	for kind, want := range map[string]metav1.ConditionStatus{
		v1alpha1.ConditionReady: metav1.ConditionTrue, v1alpha1.ConditionWritable: metav1.ConditionTrue, v1alpha1.ConditionSpaceLow: metav1.ConditionFalse,
	} {
		if c := meta.FindStatusCondition(before.Status.Conditions, kind); c == nil || c.Status != want {
			t.Errorf("condition %s is %v, want %s", kind, c, want)
		}
	}
	if st := before.Status; st.Backend != kind || st.Endpoint == "" || st.SizeBytes <= 0 || st.Keys < 100 || len(st.Servers) != 1 {
		t.Errorf("status %+v", st)
	}
	if sql := kind != "etcd3"; sql != (before.Status.SchemaVersion > 0) || sql != (before.Status.Watchers > 0) {
		t.Errorf("status %+v", before.Status)
	}
	if sql := kind != "etcd3"; sql != (before.Status.EngineVersion != "") ||
		sql != (meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionCompacting) != nil) {
		t.Errorf("engine version %q, conditions %v", before.Status.EngineVersion, before.Status.Conditions)
	}
	if strings.Contains(before.Status.Endpoint, "@") {
		t.Errorf("the endpoint %q shows who logs in", before.Status.Endpoint)
	}

	factory := dynamicinformer.NewDynamicSharedInformerFactory(dynamic.NewForConfigOrDie(s.config), 0)
	defer factory.Shutdown()
	informer := factory.ForResource(v1alpha1.SchemeGroupVersion.WithResource("datastores")).Informer()
	stop := make(chan struct{})
	defer close(stop)
	factory.Start(stop)
	eventually(t, "an informer has the datastore", func() error {
		if !informer.HasSynced() || len(informer.GetStore().List()) != 1 {
			return fmt.Errorf("it has %v", informer.GetStore().ListKeys())
		}
		return nil
	})

	// A watch shows what a write changes.
	client, err := dynamic.NewForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	datastores := client.Resource(v1alpha1.SchemeGroupVersion.WithResource("datastores"))
	watcher, err := datastores.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	if first := <-watcher.ResultChan(); first.Type != "ADDED" {
		t.Errorf("the watch begins with %v", first)
	}
	made, err := s.client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "counted"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if second := <-watcher.ResultChan(); second.Type != "MODIFIED" {
		t.Errorf("after a write the watch sends %v", second)
	}
	wrote, err := strconv.ParseInt(made.ResourceVersion, 10, 64)
	if after := get(); err != nil || after.Status.Revision < wrote {
		t.Errorf("the datastore is at revision %d after a write at %d (%v)", after.Status.Revision, wrote, err)
	}

	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "viewer"}, Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "viewer"}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
	}
	if _, err := s.client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "who may view sees datastores", func() error {
		if out, _, err := s.tryKubectl("", "get", "datastores", "--as=viewer", "-o", "name"); err != nil || !strings.Contains(out, kind) {
			return errors.Join(err, fmt.Errorf("got %q", out))
		}
		return nil
	})
	if _, errs, err := s.tryKubectl("", "get", "datastores", "--as=nobody"); err == nil || !strings.Contains(errs, "Forbidden") {
		t.Errorf("somebody else sees datastores: %v %s", err, errs)
	}
}
