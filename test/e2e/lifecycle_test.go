package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// TestLifecycle wants from a server with nothing configured what only controllers do.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	t.Run("controllers", func(t *testing.T) { // returns when all have
		for name, test := range map[string]func(*testing.T, *server){
			"NewNamespace":    testNewNamespace,
			"OwnedObjects":    testOwnedObjects,
			"Quota":           testQuota,
			"AggregatedRole":  testAggregatedRole,
			"FinishedJob":     testFinishedJob,
			"TokenSecret":     testTokenSecret,
			"AdmissionPolicy": testAdmissionPolicyStatus,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, s)
			})
		}
	})
	s.stop(t)
	if s.log.String() != "" {
		t.Errorf("the controllers log errors:\n%s", s.log)
	}
}

// gone is nil if err says that an object is not found.
func gone(err error) error {
	switch {
	case err == nil:
		return errors.New("it is there")
	case apierrors.IsNotFound(err):
		return nil
	}
	return err
}

func testNewNamespace(t *testing.T, s *server) {
	ns := s.namespace(t, "fresh")
	s.serviceAccount(t, ns)
	want, err := os.ReadFile(filepath.Join(s.dir, "pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	published := func() error {
		got, err := s.client.CoreV1().ConfigMaps(ns).Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		if err == nil && got.Data["ca.crt"] != string(want) {
			err = fmt.Errorf("it is %q", got.Data["ca.crt"])
		}
		return err
	}
	eventually(t, "the namespace has the root certificate", published)
	// They come back, too.
	if err := s.client.CoreV1().ServiceAccounts(ns).Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.client.CoreV1().ConfigMaps(ns).Delete(t.Context(), "kube-root-ca.crt", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.serviceAccount(t, ns)
	eventually(t, "the namespace has the root certificate again", published)
}

// testNamespaceDeletion deletes a namespace with objects of several kinds, a custom resource among them, and one that a
// finalizer holds: the namespace says so and waits for it.
func testNamespaceDeletion(t *testing.T, s *server) {
	ctx := t.Context()
	ns := s.namespace(t, "doomed")
	s.serviceAccount(t, ns)
	s.kubectlIn(t, strings.NewReplacer("widget", "gadget", "Widget", "Gadget", "wd", "gd").Replace(widgetDefinition), "apply", "-f", "-")
	s.kubectl(t, "wait", "crd", "gadgets.example.com", "--for=condition=Established", "--timeout=30s")
	in := "--namespace=" + ns
	s.kubectlIn(t, deployment, "apply", in, "-f", "-")
	eventually(t, "the custom resource is served", func() error {
		_, _, err := s.tryKubectl("apiVersion: example.com/v1\nkind: Gadget\nmetadata: {name: a}\nspec: {replicas: 1}\n", "apply", in, "-f", "-")
		return err
	})
	s.kubectl(t, "create", "secret", "generic", "secret", in, "--from-literal=a=b")
	if _, err := s.client.CoreV1().Pods(ns).Create(ctx, pod("a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/hold"}}}
	if _, err := s.client.CoreV1().ConfigMaps(ns).Create(ctx, held, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	namespaces := s.client.CoreV1().Namespaces()
	began := time.Now()
	if err := namespaces.Delete(ctx, ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "only what is held is left, and the namespace says so", func() error {
		namespace, err := namespaces.Get(ctx, ns, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("the namespace is gone before what is in it: %v", err)
		}
		said := map[corev1.NamespaceConditionType]string{}
		for _, c := range namespace.Status.Conditions {
			if c.Status == corev1.ConditionTrue {
				said[c.Type] = c.Message
			}
		}
		if want := "example.com/hold in 1 resource instances"; !strings.Contains(said[corev1.NamespaceFinalizersRemaining], want) {
			return fmt.Errorf("conditions %v, want %q", said, want)
		}
		if want := "configmaps. has 1 resource instances"; !strings.Contains(said[corev1.NamespaceContentRemaining], want) || strings.Contains(said[corev1.NamespaceContentRemaining], ",") {
			return fmt.Errorf("conditions %v, want %q and nothing else", said, want)
		}
		return nil
	})
	patch := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := s.client.CoreV1().ConfigMaps(ns).Patch(ctx, "held", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace is gone", func() error {
		_, err := namespaces.Get(ctx, ns, metav1.GetOptions{})
		return gone(err)
	})
	t.Logf("the namespace was deleted within %s", time.Since(began).Round(time.Millisecond))
	s.kubectl(t, "delete", "crd", "gadgets.example.com", "--timeout=60s")
}

// testOwnedObjects deletes owners in each of the three ways.
func testOwnedObjects(t *testing.T, s *server) {
	ctx := t.Context()
	objects := s.client.CoreV1().ConfigMaps(s.namespace(t, "owners"))
	create := func(o *corev1.ConfigMap) *corev1.ConfigMap {
		t.Helper()
		made, err := objects.Create(ctx, o, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	isGone := func(name string) {
		t.Helper()
		eventually(t, name+" is gone", func() error {
			_, err := objects.Get(ctx, name, metav1.GetOptions{})
			return gone(err)
		})
	}
	family := func(name string, finalizers ...string) (owner, dependent string) {
		t.Helper()
		o := create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}})
		ref := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: o.Name, UID: o.UID, BlockOwnerDeletion: ptr.To(true)}
		d := create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name + "-owned", Finalizers: finalizers, OwnerReferences: []metav1.OwnerReference{ref}}})
		return o.Name, d.Name
	}
	remove := func(name string, policy metav1.DeletionPropagation) {
		t.Helper()
		if err := objects.Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
			t.Fatal(err)
		}
	}

	owner, dependent := family("background")
	remove(owner, metav1.DeletePropagationBackground)
	isGone(owner)
	isGone(dependent)

	owner, dependent = family("foreground", "example.com/hold")
	remove(owner, metav1.DeletePropagationForeground)
	eventually(t, "the dependent is being deleted", func() error {
		got, err := objects.Get(ctx, dependent, metav1.GetOptions{})
		if err == nil && got.DeletionTimestamp == nil {
			err = errors.New("it is not")
		}
		return err
	})
	if _, err := objects.Get(ctx, owner, metav1.GetOptions{}); err != nil {
		t.Errorf("the owner does not wait for its dependent: %v", err)
	}
	if _, err := objects.Patch(ctx, dependent, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	isGone(dependent)
	isGone(owner)

	owner, dependent = family("orphan")
	remove(owner, metav1.DeletePropagationOrphan)
	isGone(owner)
	if got, err := objects.Get(ctx, dependent, metav1.GetOptions{}); err != nil || len(got.OwnerReferences) != 0 || got.DeletionTimestamp != nil {
		t.Errorf("the orphan is %v (%v), want it there without an owner", got, err)
	}
}

func testQuota(t *testing.T, s *server) {
	ctx := t.Context()
	ns := s.namespace(t, "quota")
	objects, quotas := s.client.CoreV1().ConfigMaps(ns), s.client.CoreV1().ResourceQuotas(ns)
	eventually(t, "the namespace has the root certificate", func() error {
		_, err := objects.Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
	const name = corev1.ResourceName("count/configmaps")
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "quota"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{name: resource.MustParse("3")},
	}}
	if _, err := quotas.Create(ctx, quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used := func(want int64) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d are used", want), func() error {
			got, err := quotas.Get(ctx, "quota", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if is, ok := got.Status.Used[name]; !ok || is.Value() != want {
				return fmt.Errorf("%v are used", got.Status.Used)
			}
			return nil
		})
	}
	create := func(name string) error {
		_, err := objects.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	used(1)
	if err := errors.Join(create("a"), create("b")); err != nil {
		t.Fatal(err)
	}
	if err := create("c"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota") {
		t.Errorf("one more than the quota: %v, want forbidden", err)
	}
	used(3)
	if err := objects.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	used(2)
	if err := create("c"); err != nil {
		t.Errorf("after one was deleted: %v", err)
	}
}

func testAggregatedRole(t *testing.T, s *server) {
	ctx := t.Context()
	roles := s.client.RbacV1().ClusterRoles()
	label := map[string]string{"aggregate": "here"}
	rules := []rbacv1.PolicyRule{{APIGroups: []string{"example.com"}, Resources: []string{"widgets"}, Verbs: []string{"get"}}}
	for _, role := range []*rbacv1.ClusterRole{
		{ObjectMeta: metav1.ObjectMeta{Name: "whole"}, AggregationRule: &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: label}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "part", Labels: label}, Rules: rules},
	} {
		if _, err := roles.Create(ctx, role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the role has the rules of its part", func() error {
		got, err := roles.Get(ctx, "whole", metav1.GetOptions{})
		if err == nil && fmt.Sprint(got.Rules) != fmt.Sprint(rules) {
			err = fmt.Errorf("rules %v", got.Rules)
		}
		return err
	})
}

func testFinishedJob(t *testing.T, s *server) {
	ctx := t.Context()
	jobs := s.client.BatchV1().Jobs(s.namespace(t, "jobs"))
	spec := batchv1.JobSpec{TTLSecondsAfterFinished: ptr.To[int32](0), Template: corev1.PodTemplateSpec{Spec: pod("x").Spec}}
	spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	job, err := jobs.Create(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job"}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	now := metav1.Now()
	job.Status = batchv1.JobStatus{StartTime: &now, CompletionTime: &now, Succeeded: 1, Conditions: []batchv1.JobCondition{
		{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: now},
	}}
	if _, err := jobs.UpdateStatus(ctx, job, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the finished job is gone", func() error {
		_, err := jobs.Get(ctx, "job", metav1.GetOptions{})
		return gone(err)
	})
}

// testTokenSecret asks for a token that does not expire, and uses it.
func testTokenSecret(t *testing.T, s *server) {
	ctx := t.Context()
	ns := s.namespace(t, "token-secret")
	s.serviceAccount(t, ns)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}
	if _, err := s.client.CoreV1().Secrets(ns).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var token string
	eventually(t, "the secret has a token", func() error {
		got, err := s.client.CoreV1().Secrets(ns).Get(ctx, "token", metav1.GetOptions{})
		if err == nil && len(got.Data[corev1.ServiceAccountTokenKey]) == 0 {
			err = errors.New("none yet")
		}
		token = string(got.Data[corev1.ServiceAccountTokenKey])
		return err
	})
	_, err := s.withToken(t, token).CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "system:serviceaccount:token-secret:default") {
		t.Errorf("with the token: %v, want that the service account is forbidden this", err)
	}
}

// testAdmissionPolicyStatus makes a policy that reads a field which its resource does not have.
func testAdmissionPolicyStatus(t *testing.T, s *server) {
	ctx := t.Context()
	policies := s.client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "policy"}, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{"CREATE"},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
		}}}},
		Validations: []admissionregistrationv1.Validation{{Expression: "object.spec.copies > 1"}},
	}}
	if _, err := policies.Create(ctx, policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the status warns of the field", func() error {
		got, err := policies.Get(ctx, "policy", metav1.GetOptions{})
		if err == nil && (got.Status.TypeChecking == nil || !strings.Contains(fmt.Sprint(got.Status.TypeChecking.ExpressionWarnings), "undefined field 'copies'")) {
			err = fmt.Errorf("status %v", got.Status)
		}
		return err
	})
}
