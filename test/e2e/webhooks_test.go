package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	labelPatch = `[{"op": "add", "path": "/metadata/labels", "value": {"mutated": "yes"}}]`

	mutatingWebhook = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: mutate}
webhooks:
- name: mutate.example.com
  clientConfig: %s
  rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [configmaps]}]
  namespaceSelector: {matchLabels: {hooks: "yes"}}
  matchConditions: [{name: not-exempt, expression: "object.metadata.name != 'exempt'"}]
  sideEffects: NoneOnDryRun
  admissionReviewVersions: [v1]
`
	validatingWebhook = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: validate}
webhooks:
- name: validate.example.com
  clientConfig: %s
  rules: [{operations: [CREATE, UPDATE], apiGroups: [""], apiVersions: [v1], resources: [configmaps]}]
  namespaceSelector: {matchLabels: {hooks: "yes"}}
  sideEffects: None
  admissionReviewVersions: [v1]
`
)

// answerAdmission adds a label, refuses objects whose data say so, and warns of everything else.
func answerAdmission(path string, review *admissionv1.AdmissionReview) {
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	if path == "/mutate" {
		review.Response.PatchType, review.Response.Patch = ptr.To(admissionv1.PatchTypeJSONPatch), []byte(labelPatch)
		return
	}
	var object corev1.ConfigMap
	if err := json.Unmarshal(review.Request.Object.Raw, &object); err != nil {
		review.Response.Allowed = false
		review.Response.Result = &metav1.Status{Message: err.Error()}
		return
	}
	if object.Data["refuse"] != "" {
		review.Response.Allowed = false
		review.Response.Result = &metav1.Status{Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Message: object.Data["refuse"]}
		return
	}
	review.Response.Warnings = []string{"label " + object.Labels["mutated"]}
}

// testWebhooks has a webhook change objects and another one judge the result.
func testWebhooks(t *testing.T, s *server) {
	ctx := t.Context()
	in, out := s.labelled(t, "hooks", "hooks=yes"), s.labelled(t, "no-hooks", "hooks=no")
	hook := startWebhook(t, answerAdmission)
	mutating := fmt.Sprintf(mutatingWebhook, hook.clientConfig("/mutate"))
	s.kubectlIn(t, mutating, "apply", "-f", "-")
	s.kubectlIn(t, fmt.Sprintf(validatingWebhook, hook.clientConfig("/validate")), "apply", "-f", "-")
	client, heard := s.warned(t)
	object := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	// The server learns of the configurations by a watch.
	eventually(t, "both webhooks are asked", func() error {
		heard.take()
		got, err := client.CoreV1().ConfigMaps(in).Create(ctx, object("dry"), tryOut)
		if err == nil && (got.Labels["mutated"] != "yes" || strings.Join(heard.take(), ";") != "label yes") {
			err = fmt.Errorf("labels %v", got.Labels)
		}
		return err
	})
	if _, err := client.CoreV1().ConfigMaps(in).Get(ctx, "dry", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what was tried out is there (%v)", err)
	}

	for _, c := range []struct {
		name, namespace string
		label, warning  string
	}{
		{"a", in, "yes", "label yes"},
		{"exempt", in, "", "label "}, // a match condition of the mutating webhook
		{"a", out, "", ""},
	} {
		got, err := client.CoreV1().ConfigMaps(c.namespace).Create(ctx, object(c.name), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if warning := strings.Join(heard.take(), ";"); got.Labels["mutated"] != c.label || warning != c.warning {
			t.Errorf("%s/%s has the label %q and the warning %q, want %q and %q", c.namespace, c.name, got.Labels["mutated"], warning, c.label, c.warning)
		}
	}
	stored, err := s.client.CoreV1().ConfigMaps(in).Get(ctx, "a", metav1.GetOptions{})
	if err != nil || stored.Labels["mutated"] != "yes" {
		t.Errorf("stored with the labels %v (%v)", stored.Labels, err)
	}

	refused := object("refused")
	refused.Data = map[string]string{"refuse": "not today"}
	_, err = client.CoreV1().ConfigMaps(in).Create(ctx, refused, metav1.CreateOptions{})
	says(t, err, `admission webhook "validate.example.com" denied the request: not today`)
	if !apierrors.IsConflict(err) {
		t.Errorf("the reason is %s, want the webhook's", apierrors.ReasonForError(err))
	}
	stored.Data = refused.Data
	_, err = client.CoreV1().ConfigMaps(in).Update(ctx, stored, metav1.UpdateOptions{})
	says(t, err, "not today")
	if unchanged, err := client.CoreV1().ConfigMaps(in).Get(ctx, "a", metav1.GetOptions{}); err != nil || unchanged.Data != nil {
		t.Errorf("the refused update left %v (%v)", unchanged.Data, err)
	}
	if _, err := client.CoreV1().ConfigMaps(in).Get(ctx, "refused", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the refused object is there (%v)", err)
	}
	if _, err := client.CoreV1().ConfigMaps(out).Create(ctx, refused, metav1.CreateOptions{}); err != nil {
		t.Errorf("in a namespace that no webhook selects: %v", err)
	}

	// A webhook with side effects must know that this is none of its business.
	ours := func(r admissionv1.AdmissionReview) bool {
		return r.Request.Namespace == in && r.Request.Name != "kube-root-ca.crt"
	}
	for _, review := range hook.reviews(ours) {
		r := review.Request
		if *r.DryRun != (r.Name == "dry") || r.UserInfo.Username != "kubernetes-admin" || r.Resource.Resource != "configmaps" {
			t.Errorf("a webhook was asked about %s %s of %s, dry run %t", r.Resource.Resource, r.Name, r.UserInfo.Username, *r.DryRun)
		}
	}
	_, errs, err := s.tryKubectl(strings.Replace(mutating, "NoneOnDryRun", "Some", 1), "apply", "--dry-run=server", "-f", "-")
	if err == nil {
		t.Error("a webhook that has side effects on dry runs is taken")
	}
	contains(t, errs, "sideEffects", "Unsupported value")
}

const absentWebhooks = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: absent}
webhooks:
- &webhook
  name: fail.example.com
  clientConfig: %[1]s
  rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [configmaps]}]
  objectSelector: {matchLabels: {absent: fail}}
  failurePolicy: Fail
  timeoutSeconds: 5
  sideEffects: None
  admissionReviewVersions: [v1]
- <<: *webhook
  name: ignore.example.com
  objectSelector: {matchLabels: {absent: ignore}}
  failurePolicy: Ignore
`

// testAbsentWebhooks has a webhook whose server is gone.
func testAbsentWebhooks(t *testing.T, s *server) {
	ctx := t.Context()
	ns := s.namespace(t, "absent-hooks")
	hook := startWebhook(t, answerAdmission)
	hook.Close()
	s.kubectlIn(t, fmt.Sprintf(absentWebhooks, hook.clientConfig("/validate")), "apply", "-f", "-")
	create := func(policy string, options metav1.CreateOptions) error {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: policy, Labels: map[string]string{"absent": policy}}}
		_, err := s.client.CoreV1().ConfigMaps(ns).Create(ctx, object, options)
		return err
	}
	eventually(t, "the webhook is missed", func() error {
		if err := create("fail", tryOut); !apierrors.IsInternalError(err) {
			return fmt.Errorf("%v, want an internal error", err)
		}
		return nil
	})
	says(t, create("fail", metav1.CreateOptions{}), `failed calling webhook "fail.example.com"`, "connection refused")
	const counter = `apiserver_admission_webhook_fail_open_count{name="ignore.example.com",type="validating"}`
	before := s.counted(t, counter)
	if err := create("ignore", metav1.CreateOptions{}); err != nil {
		t.Errorf("with failurePolicy Ignore: %v", err)
	}
	if after := s.counted(t, counter); after != before+1 {
		t.Errorf("the metric says %g, want %g: the webhook was not even tried", after, before+1)
	}
}
