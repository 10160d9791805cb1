package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	kms "k8s.io/apiserver/pkg/storage/value/encrypt/envelope/testing/v2"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// The providers that TestEncryption uses, for one list in this order.
const (
	identity = "{identity: {}}"
	oldKey   = "{aescbc: {keys: [{name: old, secret: b2xkIGtleSBvZiAzMiBieXRlcyBmb3IgYSB0ZXN0Li4=}]}}"
	newKey   = "{aesgcm: {keys: [{name: new, secret: bmV3IGtleSBvZiAzMiBieXRlcyBmb3IgYSB0ZXN0Li4=}]}}"
)

func encryptionConfig(providers ...string) string {
	return fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources: [{resources: [secrets], providers: [%s]}]
`, strings.Join(providers, ", "))
}

const hiddenText = "what-nobody-may-read"

// encrypted is a server that encrypts secrets, and its datastore, in which the test looks beside it.
type encrypted struct {
	*server
	secrets corev1client.SecretInterface
	store   *clientv3.Client
}

func startEncrypted(t *testing.T, dir, file string) encrypted {
	t.Helper()
	socket := "unix://" + filepath.Join(dir, "datastore.sock")
	s := start(t, dir, "--datastore-listen="+socket, "--encryption-provider-config="+file, "--encryption-provider-config-automatic-reload=true")
	return encrypted{s, s.client.CoreV1().Secrets("default"), etcdClient(t, socket, nil)}
}

func (e encrypted) create(t *testing.T, name string) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"s": hiddenText}}
	if _, err := e.secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// rewrite writes a secret as it is: that is a write only if it is stored in another way from now on.
func (e encrypted) rewrite(t *testing.T, name string) {
	t.Helper()
	if _, err := e.secrets.Patch(t.Context(), name, types.MergePatchType, []byte("{}"), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// stored returns the prefix that says how a secret is encrypted, and fails if there is such a prefix and plain text all the same.
func (e encrypted) stored(t *testing.T, name string) string {
	t.Helper()
	got, err := e.store.Get(t.Context(), "/registry/secrets/default/"+name)
	if err != nil || len(got.Kvs) != 1 {
		t.Fatalf("%s in the datastore: %v, %v", name, got, err)
	}
	value := string(got.Kvs[0].Value)
	parts := strings.SplitN(value, ":", 6)
	plain := strings.HasPrefix(value, "k8s\x00")
	if plain != strings.Contains(value, hiddenText) || !plain && len(parts) < 6 {
		t.Fatalf("%s is stored as %q", name, value)
	}
	if plain {
		return "plain"
	}
	return strings.Join(parts[2:5], ":")
}

func (e encrypted) expectStored(t *testing.T, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for name := range want {
		got[name] = e.stored(t, name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}

// expectRead reads each secret from the datastore, and all in a list.
func (e encrypted) expectRead(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if got, err := e.secrets.Get(t.Context(), name, metav1.GetOptions{}); err != nil || string(got.Data["s"]) != hiddenText {
			t.Errorf("%s reads %q (%v)", name, got.Data["s"], err)
		}
	}
	list, err := e.secrets.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != len(names) {
		t.Errorf("a list has %d secrets (%v), want %d", len(list.Items), err, len(names))
	}
}

// TestEncryption goes from plain text over two keys to a KMS plugin.
func TestEncryption(t *testing.T) {
	t.Parallel()
	dir, file := t.TempDir(), writeFile(t, encryptionConfig(identity))
	s := startEncrypted(t, dir, file)
	s.create(t, "a")
	s.expectStored(t, map[string]string{"a": "plain"})

	// The server looks once a minute whether the file has changed.
	s.create(t, "probe")
	replaceFile(t, file, encryptionConfig(oldKey, identity))
	err := wait.PollUntilContextTimeout(t.Context(), time.Second, patience, false, func(context.Context) (bool, error) {
		s.rewrite(t, "probe")
		return s.stored(t, "probe") == "aescbc:v1:old", nil
	})
	if err != nil {
		t.Fatalf("the changed file is not used after %s", patience)
	}
	s.create(t, "b")
	s.expectStored(t, map[string]string{"a": "plain", "b": "aescbc:v1:old"}) // a has not been written since
	s.expectRead(t, "a", "b", "probe")
	s.stop(t)

	replaceFile(t, file, encryptionConfig(newKey, oldKey, identity))
	s = startEncrypted(t, dir, file)
	s.create(t, "c")
	s.expectStored(t, map[string]string{"a": "plain", "b": "aescbc:v1:old", "c": "aesgcm:v1:new"})
	s.expectRead(t, "a", "b", "c", "probe")
	for _, name := range []string{"a", "b", "probe"} {
		s.rewrite(t, name)
	}
	s.stop(t)

	socket := filepath.Join(t.TempDir(), "kms.sock")
	kms.NewBase64Plugin(t, socket)
	plugin := fmt.Sprintf("{kms: {apiVersion: v2, name: vault, endpoint: %q}}", "unix://"+socket)
	replaceFile(t, file, encryptionConfig(plugin, newKey)) // it can no longer read the old key, nor plain text
	s = startEncrypted(t, dir, file)
	s.create(t, "d")
	s.rewrite(t, "a")
	s.expectStored(t, map[string]string{"a": "kms:v2:vault", "b": "aesgcm:v1:new", "d": "kms:v2:vault"})
	s.expectRead(t, "a", "b", "c", "d", "probe")
	contains(t, s.kubectl(t, "get", "--raw", "/readyz?verbose"), "[+]kms-providers ok")
}
