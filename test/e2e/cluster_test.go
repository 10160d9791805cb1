package e2e

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// serviceAccount waits for the default service account: the admission of pods wants it.
func (s *server) serviceAccount(t *testing.T, ns string) {
	t.Helper()
	eventually(t, "the namespace has its default service account", func() error {
		_, err := s.client.CoreV1().ServiceAccounts(ns).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
}

// testServices takes a cluster IP and a node port, and wants both again after the service that had them is gone.
func testServices(t *testing.T, s *server) {
	ctx := t.Context()
	services := s.client.CoreV1().Services(s.namespace(t, "services"))
	service := func(name string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
			Type:  corev1.ServiceTypeNodePort,
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		}}
	}
	first, err := services.Create(ctx, service("first"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ip, port := first.Spec.ClusterIP, first.Spec.Ports[0].NodePort
	if ip == "" || port < 30000 || port > 32767 {
		t.Fatalf("the service got the address %q and the node port %d", ip, port)
	}
	second := service("second")
	second.Spec.ClusterIP, second.Spec.Ports[0].NodePort = ip, port
	if _, err := services.Create(ctx, second, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a second service with the address of the first: %v, want invalid", err)
	}
	if err := services.Delete(ctx, "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := services.Create(ctx, second, metav1.CreateOptions{}); err != nil {
		t.Errorf("the address and the port were not given back: %v", err)
	} else if got.Spec.ClusterIP != ip || got.Spec.Ports[0].NodePort != port {
		t.Errorf("the second service got %s and %d", got.Spec.ClusterIP, got.Spec.Ports[0].NodePort)
	}
}

func testBindingAndEviction(t *testing.T, s *server) {
	ctx := t.Context()
	ns := s.namespace(t, "binding")
	s.serviceAccount(t, ns)
	pods := s.client.CoreV1().Pods(ns)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	if _, err := s.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	created, err := pods.Create(ctx, pod("a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: created.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}
	if err := pods.Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if bound, err := pods.Get(ctx, "a", metav1.GetOptions{}); err != nil || bound.Spec.NodeName != "node" {
		t.Errorf("the pod is on node %q (%v)", bound.Spec.NodeName, err)
	}
	if err := pods.Bind(ctx, binding, metav1.CreateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("the pod was bound twice: %v, want a conflict", err)
	}
	running, err := pods.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	running.Status.Phase = corev1.PodRunning
	running.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if _, err := pods.UpdateStatus(ctx, running, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}

	// A budget that allows nothing holds the eviction up; its status is a controller's work.
	budgets := s.client.PolicyV1().PodDisruptionBudgets(ns)
	one := intstr.FromInt32(1)
	budget, err := budgets.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "budget"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	// client-go's own call would try again for more than a minute.
	err = s.client.CoreV1().RESTClient().Post().Namespace(ns).Resource("pods").Name("a").SubResource("eviction").
		Body(eviction).MaxRetries(0).Do(ctx).Error()
	if !apierrors.IsTooManyRequests(err) {
		t.Errorf("an eviction against the budget: %v, want too many requests", err)
	}
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, DisruptionsAllowed: 1, CurrentHealthy: 1, DesiredHealthy: 0, ExpectedPods: 1}
	if _, err := budgets.UpdateStatus(ctx, budget, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := pods.EvictV1(ctx, eviction); err != nil {
		t.Errorf("an eviction that the budget allows: %v", err)
	}
	if gone, err := pods.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) && gone.DeletionTimestamp == nil {
		t.Errorf("the evicted pod stays (%v)", err)
	}
}

// testTokens lets a service account in with a token, and out again when the account is gone.
func testTokens(t *testing.T, s *server) {
	ctx := t.Context()
	ns := s.namespace(t, "tokens")
	s.serviceAccount(t, ns)
	accounts := s.client.CoreV1().ServiceAccounts(ns)
	request, err := accounts.CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client := s.withToken(t, request.Status.Token)
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := review.Status.UserInfo.Username; got != "system:serviceaccount:tokens:default" {
		t.Errorf("the token is %q's", got)
	}
	if _, err := client.CoreV1().Secrets(ns).List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the service account lists secrets: %v, want forbidden", err)
	}
	if _, err := s.withToken(t, request.Status.Token+"x").CoreV1().Secrets(ns).List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("a forged token: %v, want unauthorized", err)
	}
	contains(t, s.kubectl(t, "create", "token", "default", "--namespace", ns), ".")
}

func (s *server) withToken(t *testing.T, token string) kubernetes.Interface {
	t.Helper()
	config := rest.AnonymousClientConfig(s.config)
	config.BearerToken = token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func testRBAC(t *testing.T, s *server) {
	ctx := t.Context()
	ns := s.namespace(t, "rbac")
	config := rest.CopyConfig(s.config)
	config.Impersonate.UserName = "jane"
	jane, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jane.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("without a role: %v, want forbidden", err)
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}}}
	if _, err := s.client.RbacV1().Roles(ns).Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "jane"}, Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "jane"}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"}}
	if _, err := s.client.RbacV1().RoleBindings(ns).Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The authorizer learns of the role from a watch.
	eventually(t, "jane may list pods", func() error {
		_, err := jane.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		return err
	})
	if err := jane.CoreV1().Pods(ns).Delete(ctx, "x", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("beyond the role: %v, want forbidden", err)
	}
}
