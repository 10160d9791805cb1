package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- {level: None, verbs: [delete]}
- {level: Metadata, resources: [{group: "", resources: [secrets]}], namespaces: [audited]}
- {level: Request, verbs: [update], namespaces: [audited], omitStages: [RequestReceived]}
- {level: RequestResponse, resources: [{group: "", resources: [configmaps]}], namespaces: [audited]}
- {level: None}
`

// TestAudit makes requests of which a policy wants more or less, and finds them in a file and at a webhook.
func TestAudit(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	hook := startWebhook(t, func(string, *auditv1.EventList) {})
	log := filepath.Join(t.TempDir(), "audit.log")
	s := start(t, t.TempDir(),
		"--audit-policy-file="+writeFile(t, auditPolicy), "--audit-log-path="+log,
		"--audit-webhook-config-file="+hook.kubeconfig(t, "/audit"), "--audit-webhook-batch-max-wait=100ms")
	ns := s.namespace(t, "audited")
	// The name of the program tells the requests of this test from those of controllers.
	const agent = "audit-test"
	clients := map[string]kubernetes.Interface{}
	for _, user := range []string{"", "jane"} {
		config := rest.CopyConfig(s.config)
		config.UserAgent, config.Impersonate.UserName = agent, user
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		clients[user] = client
	}
	core := clients[""].CoreV1()

	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"a": "first"}}
	watcher, err := core.ConfigMaps(ns).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=a"})
	if err != nil {
		t.Fatal(err)
	}
	object, err = core.ConfigMaps(ns).Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	<-watcher.ResultChan()
	watcher.Stop()
	object.Data["a"] = "second"
	if _, err := core.ConfigMaps(ns).Update(ctx, object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	const hidden = "what-nobody-may-read"
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"s": hidden}}
	if secret, err = core.Secrets(ns).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if string(secret.Data["s"]) != hidden {
		t.Fatalf("the secret has %q", secret.Data["s"])
	}
	_, err = clients["jane"].CoreV1().ConfigMaps(ns).Get(ctx, "a", metav1.GetOptions{})
	says(t, err, "forbidden")
	if err := core.ConfigMaps(ns).Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}

	s.stop(t) // whatever is to come has come
	want := []string{
		"Metadata RequestReceived create secrets/ by kubernetes-admin 0",
		"Metadata ResponseComplete create secrets/s by kubernetes-admin 201",
		"Request ResponseComplete update configmaps/a by kubernetes-admin 200",
		"RequestResponse RequestReceived create configmaps/ by kubernetes-admin 0",
		"RequestResponse RequestReceived get configmaps/a by kubernetes-admin 0",
		"RequestResponse RequestReceived watch configmaps/a by kubernetes-admin 0",
		"RequestResponse ResponseComplete create configmaps/a by kubernetes-admin 201",
		"RequestResponse ResponseComplete get configmaps/a by kubernetes-admin as jane 403",
		"RequestResponse ResponseComplete watch configmaps/a by kubernetes-admin 200",
		"RequestResponse ResponseStarted watch configmaps/a by kubernetes-admin 200",
	}
	for where, read := range map[string]func() []auditv1.Event{
		"the file": func() []auditv1.Event { return readAudit(t, log) },
		"the webhook": func() (events []auditv1.Event) {
			for _, list := range hook.reviews(func(auditv1.EventList) bool { return true }) {
				events = append(events, list.Items...)
			}
			return events
		},
	} {
		events := slices.DeleteFunc(read(), func(e auditv1.Event) bool { return e.UserAgent != agent })
		var got []string
		for _, event := range events {
			got = append(got, summary(event))
			objects := ""
			if event.RequestObject != nil {
				objects += "request " + string(event.RequestObject.Raw)
			}
			if event.ResponseObject != nil {
				objects += "response " + string(event.ResponseObject.Raw)
			}
			switch {
			case strings.Contains(got[len(got)-1], "ResponseComplete create configmaps"):
				contains(t, objects, "request", "response", `"a":"first"`)
			case event.Verb == "update":
				contains(t, objects, "request", `"a":"second"`)
				if event.ResponseObject != nil {
					t.Errorf("%s has a response at level Request", where)
				}
			case event.ObjectRef.Resource == "secrets" && objects != "":
				t.Errorf("%s has objects at level Metadata: %s", where, objects)
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", where, diff)
		}
	}
}

// summary is what makes an event what it is.
func summary(event auditv1.Event) string {
	user, code := event.User.Username, int32(0)
	if event.ImpersonatedUser != nil {
		user += " as " + event.ImpersonatedUser.Username
	}
	if event.ResponseStatus != nil {
		code = event.ResponseStatus.Code
	}
	return fmt.Sprintf("%s %s %s %s/%s by %s %d", event.Level, event.Stage, event.Verb, event.ObjectRef.Resource, event.ObjectRef.Name, user, code)
}

// readAudit reads the events in an audit log, except for one that is still being written.
func readAudit(t *testing.T, path string) []auditv1.Event {
	t.Helper()
	log, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var events []auditv1.Event
	for line := range strings.Lines(string(log)) {
		if !strings.HasSuffix(line, "\n") {
			break
		}
		var event auditv1.Event
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("the audit log has the line %q: %v", line, err)
		}
		events = append(events, event)
	}
	return events
}
