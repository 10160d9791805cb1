package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/utils/ptr"
)

// validatingPolicy bounds the replicas by what a ConfigMap says: in two namespaces it denies, in one it warns.
const validatingPolicy = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: replicas}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints:
    resourceRules: [{operations: [CREATE], apiGroups: [apps], apiVersions: [v1], resources: [deployments]}]
  matchConditions: [{name: not-exempt, expression: "object.metadata.name != 'exempt'"}]
  variables: [{name: max, expression: int(params.data.max)}]
  validations:
  - expression: object.spec.replicas <= variables.max
    messageExpression: "'at most ' + string(variables.max) + ' replicas, not ' + string(object.spec.replicas)"
  auditAnnotations: [{key: replicas, valueExpression: string(object.spec.replicas)}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: deny}
spec:
  policyName: replicas
  paramRef: {name: limits, parameterNotFoundAction: Deny}
  validationActions: [Deny]
  matchResources: {namespaceSelector: {matchLabels: {replicas: deny}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: warn}
spec:
  policyName: replicas
  paramRef: {name: limits, namespace: policies, parameterNotFoundAction: Deny}
  validationActions: [Warn, Audit]
  matchResources: {namespaceSelector: {matchLabels: {replicas: warn}}}
`

// deploymentOf is a Deployment with some replicas.
func deploymentOf(t *testing.T, name string, replicas int32) *appsv1.Deployment {
	t.Helper()
	var d appsv1.Deployment
	if err := yaml.Unmarshal([]byte(deployment), &d); err != nil {
		t.Fatal(err)
	}
	d.Name, d.Spec.Replicas = name, ptr.To(replicas)
	return &d
}

func testValidatingPolicies(t *testing.T, s *server) {
	ctx := t.Context()
	denied, missing, warned := s.labelled(t, "policies", "replicas=deny"), s.labelled(t, "policies-missing", "replicas=deny"), s.labelled(t, "policies-warn", "replicas=warn")
	limits := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Data: map[string]string{"max": "3"}}
	if _, err := s.client.CoreV1().ConfigMaps(denied).Create(ctx, limits, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.kubectlIn(t, validatingPolicy, "apply", "-f", "-")
	client, heard := s.warned(t)
	create := func(ns, name string, replicas int32, options metav1.CreateOptions) error {
		_, err := client.AppsV1().Deployments(ns).Create(ctx, deploymentOf(t, name, replicas), options)
		return err
	}
	tooMany := func(message string) func() error {
		return func() error {
			if err := create(denied, "dry", 4, tryOut); err == nil || !strings.HasSuffix(err.Error(), message) {
				return fmt.Errorf("%v, want %q", err, message)
			}
			return nil
		}
	}
	eventually(t, "the policy denies", tooMany("denied request: at most 3 replicas, not 4"))
	err := create(denied, "four", 4, metav1.CreateOptions{})
	says(t, err, `deployments.apps "four" is forbidden: ValidatingAdmissionPolicy 'replicas' with binding 'deny' denied request: at most 3 replicas, not 4`)
	if !apierrors.IsInvalid(err) {
		t.Errorf("the reason is %s, want Invalid", apierrors.ReasonForError(err))
	}
	for _, c := range []struct {
		name     string
		replicas int32
	}{{"three", 3}, {"exempt", 5}} {
		if err := create(denied, c.name, c.replicas, metav1.CreateOptions{}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	says(t, create(missing, "one", 1, metav1.CreateOptions{}), "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction")

	heard.take()
	if err := create(warned, "four", 4, metav1.CreateOptions{}); err != nil {
		t.Errorf("a policy that warns: %v", err)
	}
	if got, want := heard.take(), []string{"Validation failed for ValidatingAdmissionPolicy 'replicas' with binding 'warn': at most 3 replicas, not 4"}; !slices.Equal(got, want) {
		t.Errorf("warnings %q, want %q", got, want)
	}
	annotations := s.audited(t, warned, "create", "deployments", "four").Annotations
	if got := annotations["replicas/replicas"]; got != "4" {
		t.Errorf("the audit annotation of the policy is %q, want 4", got)
	}
	contains(t, annotations["validation.policy.admission.k8s.io/validation_failure"], `"message":"at most 3 replicas, not 4"`, `"binding":"warn"`)

	// The limit is read anew when it changes.
	limits.Data["max"] = "2"
	if _, err := s.client.CoreV1().ConfigMaps(denied).Update(ctx, limits, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new limit counts", tooMany("at most 2 replicas, not 4"))

	eventually(t, "the policy is type-checked", func() error {
		got, err := s.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx, "replicas", metav1.GetOptions{})
		if err == nil && (got.Status.ObservedGeneration != got.Generation || got.Status.TypeChecking == nil || len(got.Status.TypeChecking.ExpressionWarnings) != 0) {
			err = fmt.Errorf("status %v", got.Status)
		}
		return err
	})
}

// audited waits for the audit event of a finished request in TestExtensions.
func (s *server) audited(t *testing.T, ns, verb, resource, name string) (found auditv1.Event) {
	t.Helper()
	eventually(t, "the request is in the audit log", func() error {
		for _, event := range readAudit(t, filepath.Join(s.dir, "audit.log")) {
			o := event.ObjectRef
			if o != nil && o.Namespace == ns && event.Verb == verb && o.Resource == resource && o.Name == name && event.Stage == auditv1.StageResponseComplete {
				found = event
				return nil
			}
		}
		return fmt.Errorf("no %s of %s %s/%s", verb, resource, ns, name)
	})
	return found
}

// mutatingPolicy gives deployments a label by merging, and one more container by a patch if they have none of its name.
const mutatingPolicy = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: sidecar}
spec:
  matchConstraints:
    resourceRules: [{operations: [CREATE], apiGroups: [apps], apiVersions: [v1], resources: [deployments]}]
  matchConditions: [{name: no-sidecar, expression: "!object.spec.template.spec.containers.exists(c, c.name == 'sidecar')"}]
  failurePolicy: Fail
  reinvocationPolicy: IfNeeded
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: "Object{metadata: Object.metadata{labels: {'owner': request.userInfo.username}}}"
  - patchType: JSONPatch
    jsonPatch:
      expression: >
        [JSONPatch{op: "add", path: "/spec/template/spec/containers/-",
          value: Object.spec.template.spec.containers{name: "sidecar", image: "example.com/sidecar:" + object.metadata.labels.owner}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: sidecar}
spec:
  policyName: sidecar
  matchResources: {namespaceSelector: {matchLabels: {sidecar: "yes"}}}
`

func testMutatingPolicies(t *testing.T, s *server) {
	ctx := t.Context()
	in, out := s.labelled(t, "sidecar", "sidecar=yes"), s.labelled(t, "no-sidecar", "sidecar=no")
	s.kubectlIn(t, mutatingPolicy, "apply", "-f", "-")
	create := func(ns string, options metav1.CreateOptions) (string, error) {
		made, err := s.client.AppsV1().Deployments(ns).Create(ctx, deploymentOf(t, "web", 1), options)
		if err != nil {
			return "", err
		}
		var images []string
		for _, c := range made.Spec.Template.Spec.Containers {
			images = append(images, c.Image)
		}
		return fmt.Sprintf("%s %s", made.Labels, strings.Join(images, " ")), nil
	}
	const mutated = "map[owner:kubernetes-admin tier:front] example.com/one:1 example.com/two:1 example.com/sidecar:kubernetes-admin"
	eventually(t, "the policy is applied", func() error {
		if got, err := create(in, tryOut); err != nil || got != mutated {
			return fmt.Errorf("%s (%v), want %s", got, err, mutated)
		}
		return nil
	})
	if got, err := create(in, metav1.CreateOptions{}); err != nil || got != mutated {
		t.Errorf("created %s (%v), want %s", got, err, mutated)
	}
	if got, err := create(out, metav1.CreateOptions{}); err != nil || got != "map[tier:front] example.com/one:1 example.com/two:1" {
		t.Errorf("in a namespace that the binding does not select: %s (%v)", got, err)
	}
}
