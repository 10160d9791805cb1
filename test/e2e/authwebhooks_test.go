package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// answerToken knows one token.
func answerToken(_ string, review *authenticationv1.TokenReview) {
	if review.Spec.Token == "opaque" {
		review.Status.Authenticated = true
		review.Status.User = authenticationv1.UserInfo{Username: "hook:jane", UID: "7", Groups: []string{"hook:dev"}}
	}
}

// answerAccess lets hook:dev list, forbids with a reason what somebody deletes, and has no opinion about anything else.
func answerAccess(_ string, review *authorizationv1.SubjectAccessReview) {
	attributes := review.Spec.ResourceAttributes
	switch {
	case attributes == nil:
	case attributes.Verb == "list" && slices.Contains(review.Spec.Groups, "hook:dev"):
		review.Status.Allowed = true
	case attributes.Verb == "delete":
		review.Status.Denied, review.Status.Reason = true, "nobody deletes "+attributes.Name
	}
}

// TestIdentityByFlags asks an issuer and two webhooks who somebody is and what they may do, as flags say.
func TestIdentityByFlags(t *testing.T) {
	t.Parallel()
	issuer, tokens, access := startIssuer(t), startWebhook(t, answerToken), startWebhook(t, answerAccess)
	s := start(t, t.TempDir(), append(issuer.flags(t),
		"--authentication-token-webhook-config-file="+tokens.kubeconfig(t, "/token"), "--authentication-token-webhook-version=v1",
		"--authorization-mode=Node,RBAC,Webhook",
		"--authorization-webhook-config-file="+access.kubeconfig(t, "/access"), "--authorization-webhook-version=v1")...)
	t.Run("OIDC", func(t *testing.T) { testOIDCByFlags(t, s, issuer) })
	t.Run("TokenWebhook", func(t *testing.T) {
		s.expectUser(t, "opaque", authenticationv1.UserInfo{Username: "hook:jane", UID: "7", Groups: []string{"hook:dev", "system:authenticated"}})
		s.expectUnauthorized(t, map[string]string{"a token that nobody knows": "unknown"})
	})
	t.Run("AccessWebhook", func(t *testing.T) { testAccessWebhook(t, s, s.withToken(t, "opaque"), access) })
}

const authorizationConfig = `
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- {type: Node, name: node}
- {type: RBAC, name: rbac}
- type: Webhook
  name: access
  webhook:
    authorizedTTL: 5m
    unauthorizedTTL: 30s
    timeout: 10s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %q}
    matchConditions:
    - expression: has(request.resourceAttributes)
    - expression: request.resourceAttributes.namespace == %q
`

// TestIdentityByConfiguration does so as files say, which are read again when they change.
func TestIdentityByConfiguration(t *testing.T) {
	t.Parallel()
	issuer, access := startIssuer(t), startWebhook(t, answerAccess)
	kubeconfig := access.kubeconfig(t, "/access")
	authentication, authorization := writeFile(t, issuer.authenticationConfig("kubase")), writeFile(t, fmt.Sprintf(authorizationConfig, kubeconfig, "access"))
	s := start(t, t.TempDir(), "--authentication-config="+authentication, "--authorization-config="+authorization)
	t.Run("AccessWebhook", func(t *testing.T) {
		jane := s.as(t, "hook:jane", "hook:dev")
		testAccessWebhook(t, s, jane, access)
		// The match conditions keep the webhook out of this.
		if _, err := jane.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("in a namespace that the conditions leave out: %v, want forbidden", err)
		}
		for _, review := range access.reviews(func(authorizationv1.SubjectAccessReview) bool { return true }) {
			if a := review.Spec.ResourceAttributes; a == nil || a.Namespace != "access" {
				t.Errorf("the webhook was asked about %v", review.Spec)
			}
		}
	})
	t.Run("OIDC", func(t *testing.T) { testOIDCByConfiguration(t, s, issuer, authentication) })
	t.Run("AccessReload", func(t *testing.T) {
		replaceFile(t, authorization, fmt.Sprintf(authorizationConfig, kubeconfig, "default"))
		jane := s.as(t, "hook:jane", "hook:dev").CoreV1()
		eventually(t, "the new condition counts", func() error {
			_, err := jane.Pods("default").List(t.Context(), metav1.ListOptions{})
			return err
		})
		if _, err := jane.Pods("access").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("where the webhook was asked before: %v, want forbidden", err)
		}
	})
	t.Run("AbsentWebhook", func(t *testing.T) {
		access.Close()
		_, err := s.as(t, "hook:joe", "hook:dev").CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if !apierrors.IsInternalError(err) { // nobody can tell whether he may
			t.Errorf("while the webhook is away: %v, want an internal error", err)
		}
	})
}

// as is a client of the administrator who speaks for somebody else.
func (s *server) as(t *testing.T, user string, groups ...string) kubernetes.Interface {
	t.Helper()
	config := rest.CopyConfig(s.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// testAccessWebhook has the webhook decide for jane, and nodes and RBAC decide before it.
func testAccessWebhook(t *testing.T, s *server, jane kubernetes.Interface, access *webhook[authorizationv1.SubjectAccessReview]) {
	ctx := t.Context()
	ns := s.namespace(t, "access")
	s.serviceAccount(t, ns)
	if _, err := jane.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("what the webhook allows: %v", err)
	}
	err := jane.CoreV1().Pods(ns).Delete(ctx, "a", metav1.DeleteOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("what the webhook denies: %v, want forbidden", err)
	}
	says(t, err, `pods "a" is forbidden: User "hook:jane" cannot delete resource "pods"`, "nobody deletes a")
	if _, err := jane.CoreV1().Pods(ns).Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("what nobody has an opinion about: %v, want forbidden", err)
	}

	// RBAC allows this before the webhook could deny it.
	if err := s.client.CoreV1().ServiceAccounts(ns).Delete(ctx, "default", metav1.DeleteOptions{}); err != nil {
		t.Errorf("the administrator: %v", err)
	}
	node := s.as(t, "system:node:n1", "system:nodes")
	if _, err := node.CoreV1().Services(ns).List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("what the node authorizer allows: %v", err)
	}
	_, err = node.CoreV1().Secrets(ns).Get(ctx, "s", metav1.GetOptions{})
	says(t, err, "no relationship found between node 'n1' and this object")

	var asked []string
	for _, review := range access.reviews(func(r authorizationv1.SubjectAccessReview) bool {
		return r.Spec.ResourceAttributes != nil && r.Spec.ResourceAttributes.Namespace == ns
	}) {
		a := review.Spec.ResourceAttributes
		asked = append(asked, strings.Join([]string{review.Spec.User, a.Verb, filepath.Join(a.Resource, a.Name)}, " "))
	}
	want := []string{"hook:jane list pods", "hook:jane delete pods/a", "hook:jane get pods/a", "system:node:n1 get secrets/s"}
	if !slices.Equal(asked, want) {
		t.Errorf("the webhook was asked %q, want %q", asked, want)
	}
}
