package e2e

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
)

// aggregatedRoles lets the service account apiserver in the namespace wardle do what an aggregated API server has to.
const aggregatedRoles = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: apiserver, namespace: wardle}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: wardle-reads-authentication, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: apiserver, namespace: wardle}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: wardle-asks-who-may}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:auth-delegator"}
subjects: [{kind: ServiceAccount, name: apiserver, namespace: wardle}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: wardle-admission}
rules:
- {apiGroups: [""], resources: [namespaces], verbs: [get, list, watch]}
- {apiGroups: [admissionregistration.k8s.io], resources: ["*"], verbs: [get, list, watch]}
- {apiGroups: [flowcontrol.apiserver.k8s.io], resources: [prioritylevelconfigurations, flowschemas], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: wardle-admission}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: wardle-admission}
subjects: [{kind: ServiceAccount, name: apiserver, namespace: wardle}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: gardener}
rules: [{apiGroups: [wardle.example.com], resources: [flunders], verbs: [get, list, create]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: gardeners}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: gardener}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: gardeners}]
`

// TestAggregatedAPIServer has Kubernetes' example of an aggregated API server keep its objects in a `kubase etcd`, and kubase serve them.
func TestAggregatedAPIServer(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), start(t, t.TempDir())
	etcd := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	startEtcdShim(t, "--datastore-dsn=sqlite://"+filepath.Join(t.TempDir(), "wardle.db"), "--listen-client-urls="+etcd)

	s.namespace(t, "wardle")
	s.kubectlIn(t, aggregatedRoles, "apply", "-f", "-")
	port := freePort(t)
	cert, key, bundle := servingCert(t, "api.wardle.svc")
	s.kubectlIn(t, fmt.Sprintf(`
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1alpha1.wardle.example.com}
spec:
  group: wardle.example.com
  version: v1alpha1
  groupPriorityMinimum: 1000
  versionPriority: 15
  service: {name: api, namespace: wardle, port: %d}
  caBundle: %s
`, port, bundle), "apply", "-f", "-")
	s.available(t, "v1alpha1.wardle.example.com", "False", "ServiceNotFound")

	kubeconfig, audit := s.kubeconfigOf(t, "wardle", "apiserver"), filepath.Join(t.TempDir(), "audit.log")
	serve := func() (stop func()) {
		return run(t, sampleAPIServer, "--etcd-servers="+etcd, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
			"--tls-cert-file="+cert, "--tls-private-key-file="+key,
			"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig, "--audit-log-path="+audit,
			"--audit-policy-file="+writeFile(t, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"))
	}
	stop := serve()
	s.kubectl(t, "create", "service", "externalname", "api", "--namespace=wardle", "--external-name=localhost")
	s.available(t, "v1alpha1.wardle.example.com", "True", "Passed")

	ns := s.namespace(t, "garden")
	in := "--namespace=" + ns
	client, err := dynamic.NewForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	flunders := client.Resource(schema.GroupVersionResource{Group: "wardle.example.com", Version: "v1alpha1", Resource: "flunders"}).Namespace(ns)
	watcher, err := flunders.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	expect := func(kind watch.EventType, name string) {
		t.Helper()
		event := <-watcher.ResultChan()
		if object, ok := event.Object.(*unstructured.Unstructured); event.Type != kind || !ok || object.GetName() != name {
			t.Fatalf("the watch sees %s %v, want %s %s", event.Type, event.Object, kind, name)
		}
	}
	const flunder = "apiVersion: wardle.example.com/v1alpha1\nkind: Flunder\nmetadata: {name: one, labels: {%s}}\nspec: {reference: other}\n"
	contains(t, s.kubectlIn(t, fmt.Sprintf(flunder, ""), "apply", in, "-f", "-"), "flunder.wardle.example.com/one created")
	expect(watch.Added, "one")
	contains(t, s.kubectlIn(t, fmt.Sprintf(flunder, "a: b"), "apply", in, "-f", "-"), "flunder.wardle.example.com/one configured")
	expect(watch.Modified, "one")
	if got := s.kubectl(t, "get", "flunders", in, "-l", "a=b", "-o", "jsonpath={.items[*].spec}"); got != `{"reference":"other","referenceType":"Flunder"}` {
		t.Errorf("the flunder has the spec %s, want it with its default", got)
	}

	t.Run("Discovery", func(t *testing.T) {
		contains(t, s.kubectl(t, "api-resources", "--api-group=wardle.example.com"), "fischers", "flunders")
		contains(t, s.kubectl(t, "explain", "flunder.spec.reference"), "FIELD: reference <string>", "A name of another flunder")
		eventually(t, "the OpenAPI v2 document has the types of both servers", func() error { // merged in the background
			document, err := s.client.Discovery().RESTClient().Get().AbsPath("/openapi/v2").DoRaw(ctx)
			if err != nil {
				return err
			}
			for _, name := range []string{"sample-apiserver.pkg.apis.wardle.v1alpha1.FlunderSpec", "io.k8s.api.apps.v1.DeploymentSpec"} {
				if !bytes.Contains(document, []byte(name+`":{`)) {
					return fmt.Errorf("it has no %s", name)
				}
			}
			return nil
		})
	})
	t.Run("Authentication", func(t *testing.T) {
		_, errs, err := s.tryKubectl("", "get", "flunders", in, "--as=jane")
		if err == nil {
			t.Error("jane lists flunders, and has no right to")
		}
		contains(t, errs, `User "jane" cannot list resource "flunders"`)
		contains(t, s.kubectl(t, "get", "flunders", in, "--as=jane", "--as-group=gardeners"), "one")
		eventually(t, "the aggregated server has taken note of jane of the gardeners", func() error {
			events := readAudit(t, audit)
			if slices.ContainsFunc(events, func(e auditv1.Event) bool {
				return e.Stage == auditv1.StageResponseComplete && e.Verb == "list" && e.ResponseStatus.Code == http.StatusOK &&
					e.User.Username == "jane" && slices.Equal(e.User.Groups, []string{"gardeners", "system:authenticated"})
			}) {
				return nil
			}
			return fmt.Errorf("she is not in %d events", len(events))
		})

		// Only the aggregator is believed.
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://localhost:%d/apis/wardle.example.com/v1alpha1/flunders", port), nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Remote-User", "jane")
		request.Header.Set("X-Remote-Group", "system:masters")
		direct := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		response, err := direct.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusForbidden {
			t.Errorf("headers without the aggregator's certificate: %s (%v)", response.Status, err)
		}
		contains(t, string(body), "system:anonymous")
	})

	kept := func() int64 {
		t.Helper()
		keys, err := etcdClient(t, etcd, nil).Get(ctx, "/registry/wardle.example.com/wardle.example.com/flunders/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return keys.Count
	}
	if n := kept(); n != 1 {
		t.Errorf("kubase etcd has %d flunders, want 1", n)
	}

	// Away, and back again with what it had.
	stop()
	if _, errs, err := s.tryKubectl("", "get", "--raw", "/apis/wardle.example.com/v1alpha1/flunders"); err == nil {
		t.Error("flunders are served by nobody")
	} else {
		contains(t, errs, "ServiceUnavailable")
	}
	s.available(t, "v1alpha1.wardle.example.com", "False", "FailedDiscoveryCheck")
	// All else goes on, but for the end of namespaces: who knows what is left in them?
	empty := s.namespace(t, "empty")
	s.kubectl(t, "delete", "namespace", empty, "--wait=false")
	s.kubectl(t, "wait", "namespace", empty, "--for=condition=NamespaceDeletionDiscoveryFailure", "--timeout=60s")
	serve()
	s.available(t, "v1alpha1.wardle.example.com", "True", "Passed")
	s.kubectl(t, "wait", "namespace", empty, "--for=delete", "--timeout=80s")
	contains(t, s.kubectl(t, "get", "flunder", "one", in), "one")

	s.kubectl(t, "delete", "namespace", ns, "--timeout=60s") // its controller finds what another server has in it
	if n := kept(); n != 0 {
		t.Errorf("kubase etcd has %d flunders of a namespace that is gone", n)
	}
}

// available waits until an APIService has the condition Available with this status and reason. The API server looks every 30 seconds, and
// at once when service or endpoints change.
func (s *server) available(t *testing.T, apiService, status, reason string) {
	t.Helper()
	s.kubectl(t, "wait", "apiservice", apiService, "--for=condition=Available="+status, "--timeout=80s")
	got := s.kubectl(t, "get", "apiservice", apiService, "-o", `jsonpath={.status.conditions[?(@.type=="Available")].reason}`)
	if got != reason {
		t.Errorf("%s has Available %s for the reason %s, want %s", apiService, status, got, reason)
	}
}

// servingCert makes the certificate and key of a server in files, and the CA bundle for it as an APIService has it.
func servingCert(t *testing.T, name string) (cert, key, bundle string) {
	t.Helper()
	certPEM, keyPEM, err := certutil.GenerateSelfSignedCertKey(name, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, content := range map[string][]byte{cert: certPEM, key: keyPEM} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key, base64.StdEncoding.EncodeToString(certPEM)
}

// kubeconfigOf is a file with which a program outside the cluster acts as a service account.
func (s *server) kubeconfigOf(t *testing.T, ns, account string) string {
	t.Helper()
	token, err := s.client.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(s.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	current := config.Contexts[config.CurrentContext]
	config.AuthInfos = map[string]*clientcmdapi.AuthInfo{current.AuthInfo: {Token: token.Status.Token}}
	path := filepath.Join(t.TempDir(), account+".kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}
