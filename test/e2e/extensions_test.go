package e2e

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestExtensions extends one server in all the ways that objects of the API can.
func TestExtensions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir,
		"--datastore-listen=unix://"+filepath.Join(dir, "datastore.sock"),
		"--audit-policy-file="+writeFile(t, "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"),
		"--audit-log-path="+filepath.Join(dir, "audit.log"))
	for name, test := range map[string]func(*testing.T, *server){
		"Webhooks":           testWebhooks,
		"AbsentWebhooks":     testAbsentWebhooks,
		"ValidatingPolicies": testValidatingPolicies,
		"MutatingPolicies":   testMutatingPolicies,
		"CustomVersions":     testCustomVersions,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// writeFile makes a file with this content for one test.
func writeFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// webhook is a TLS server that answers objects of type Review.
type webhook[Review any] struct {
	*httptest.Server
	mu   sync.Mutex // guards seen
	seen []Review
}

// startWebhook serves answer, which fills in the response of a review, on each path.
func startWebhook[Review any](t *testing.T, answer func(path string, review *Review)) *webhook[Review] {
	t.Helper()
	hook := &webhook[Review]{}
	hook.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review Review
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		hook.mu.Lock()
		hook.seen = append(hook.seen, review)
		hook.mu.Unlock()
		answer(r.URL.Path, &review)
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Errorf("cannot answer the API server: %v", err)
		}
	}))
	t.Cleanup(hook.Close)
	return hook
}

// reviews returns what the webhook was asked so far and keep is true of.
func (w *webhook[Review]) reviews(keep func(Review) bool) []Review {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.seen), func(r Review) bool { return !keep(r) })
}

// caPEM is the certificate that vouches for the webhook.
func (w *webhook[Review]) caPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.Certificate().Raw})
}

// clientConfig is how the API server reaches a path of the webhook, as a YAML value.
func (w *webhook[Review]) clientConfig(path string) string {
	return fmt.Sprintf("{url: %q, caBundle: %s}", w.URL+path, base64.StdEncoding.EncodeToString(w.caPEM()))
}

// kubeconfig is a file that says how the API server reaches a path of the webhook.
func (w *webhook[Review]) kubeconfig(t *testing.T, path string) string {
	t.Helper()
	return writeFile(t, fmt.Sprintf(`
apiVersion: v1
kind: Config
clusters: [{name: webhook, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: webhook, user: {}}]
contexts: [{name: webhook, context: {cluster: webhook, user: webhook}}]
current-context: webhook
`, w.URL+path, base64.StdEncoding.EncodeToString(w.caPEM())))
}

// warnings are what a client was warned of.
type warnings struct {
	mu    sync.Mutex // guards texts
	texts []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

// warned is a client of the administrator that takes note of warnings.
func (s *server) warned(t *testing.T) (kubernetes.Interface, *warnings) {
	t.Helper()
	config, heard := rest.CopyConfig(s.config), &warnings{}
	config.WarningHandler = heard
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client, heard
}

// take returns the warnings since it was last called.
func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	texts := w.texts
	w.texts = nil
	return texts
}

// says fails unless err has every one of the words.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", words)
		return
	}
	contains(t, err.Error(), words...)
}

// tryOut is for creating something that is not kept.
var tryOut = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

// labelled makes a namespace with a label, such as a=b.
func (s *server) labelled(t *testing.T, name, label string) string {
	t.Helper()
	s.namespace(t, name)
	s.kubectl(t, "label", "namespace", name, label)
	return name
}
