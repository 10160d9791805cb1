package server

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	aggregatorclientset "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/kubase/kubase/pkg/registry/datastore/v1alpha1"
)

const servedFile = "../registry/testdata/served.txt"

var update = flag.Bool("update", false, "write "+servedFile+" from what upstream's server serves")

func TestMain(m *testing.M) {
	flag.Parse()
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// running is a server in this process.
type running struct {
	config *rest.Config
	client clientset.Interface
	stop   func() error // waits until it has ended
}

// startOurs runs the server on a real etcd, under its own key prefix.
func startOurs(t *testing.T, dir, etcd string, args ...string) *running {
	t.Helper()
	o := NewOptions()
	completed := mustComplete(t, o, append([]string{"--data-dir=" + dir, "--etcd-servers=" + etcd, "--etcd-prefix=/ours", freePort(t)}, args...)...)
	if errs := completed.Validate(); len(errs) > 0 {
		t.Fatal(errs)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- Run(ctx, completed, func() { close(ready) }) }()
	stop := func() error { cancel(); return <-ended }
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		t.Fatal(err)
	}
	return newRunning(t, completed.Kubeconfig, stop)
}

// startUpstream runs kube-apiserver from its own module, with the files of dir.
func startUpstream(t *testing.T, dir, etcd string, args ...string) *running {
	t.Helper()
	ours := mustComplete(t, NewOptions(), "--data-dir="+dir, freePort(t))
	o := options.NewServerRunOptions()
	name, err := cache.NewInformerName("upstream")
	if err != nil {
		t.Fatal(err)
	}
	o.InformerName = name
	all := pflag.NewFlagSet("test", pflag.ContinueOnError)
	for _, fs := range o.Flags().FlagSets {
		all.AddFlagSet(fs)
	}
	if err := all.Parse(append([]string{
		"--etcd-servers=" + etcd, "--etcd-prefix=/upstream", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", ours.SecureServing.BindPort),
		"--endpoint-reconciler-type=none", "--authorization-mode=Node,RBAC", "--service-cluster-ip-range=" + defaultServiceCIDR,
		"--tls-cert-file=" + ours.SecureServing.ServerCert.CertKey.CertFile,
		"--tls-private-key-file=" + ours.SecureServing.ServerCert.CertKey.KeyFile,
		"--client-ca-file=" + ours.Authentication.ClientCert.ClientCA,
		"--service-account-issuer=" + defaultIssuer,
		"--service-account-key-file=" + ours.ServiceAccountSigningKeyFile,
		"--service-account-signing-key-file=" + ours.ServiceAccountSigningKeyFile,
		"--requestheader-client-ca-file=" + ours.Authentication.RequestHeader.ClientCAFile,
		"--proxy-client-cert-file=" + ours.ProxyClientCertFile, "--proxy-client-key-file=" + ours.ProxyClientKeyFile,
		"--shutdown-send-retry-after=true",
	}, args...)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	completed, err := o.Complete(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- app.Run(ctx, completed) }()
	r := newRunning(t, ours.Kubeconfig, func() error { cancel(); return <-ended })
	ready := make(chan struct{})
	go reportReady(ctx, r.client, func() { close(ready) })
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	return r
}

func newRunning(t *testing.T, kubeconfig string, stop func() error) *running {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return &running{config: config, client: clientset.NewForConfigOrDie(config), stop: stop}
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return fmt.Sprintf("--secure-port=%d", listener.Addr().(*net.TCPAddr).Port)
}

// startEtcd runs a real etcd and returns its URL.
func startEtcd(t *testing.T) string {
	t.Helper()
	config := embed.NewConfig()
	config.Dir = t.TempDir()
	config.LogLevel = "panic"
	config.UnsafeNoFsync = true
	any := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	config.ListenClientUrls, config.ListenPeerUrls = []url.URL{any}, []url.URL{any}
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	<-etcd.Server.ReadyNotify()
	return "http://" + etcd.Clients[0].Addr().String()
}

// served lists the groups with their versions in the order of discovery, the priorities of both, and every resource with its
// verbs.
func (r *running) served(t *testing.T) []string {
	t.Helper()
	groups, lists, err := r.client.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, group := range groups {
		line := fmt.Sprintf("group %q", group.Name)
		for _, version := range group.Versions {
			line += " " + version.Version
		}
		lines = append(lines, line)
	}
	services, err := aggregatorclientset.NewForConfigOrDie(r.config).ApiregistrationV1().APIServices().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range services.Items {
		lines = append(lines, fmt.Sprintf("priority %s %d %d", s.Name, s.Spec.GroupPriorityMinimum, s.Spec.VersionPriority))
	}
	var resources []string // client-go returns them in no order
	for _, list := range lists {
		for _, resource := range list.APIResources {
			fields := []string{list.GroupVersion, resource.Name, resource.Kind, fmt.Sprintf("namespaced=%v", resource.Namespaced), strings.Join(resource.Verbs, ",")}
			resources = append(resources, strings.Join(append(fields, resource.ShortNames...), " "))
		}
	}
	slices.Sort(resources)
	return append(lines, resources...)
}

// lines reads a page that has one thing a line.
func (r *running) lines(t *testing.T, path string) []string {
	t.Helper()
	body, err := r.client.Discovery().RESTClient().Get().RequestURI(path).DoRaw(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(body)), "\n")
}

// documents hashes the OpenAPI documents: version 2 by path and type, version 3 by group and version.
func (r *running) documents(t *testing.T) []string {
	t.Helper()
	get := func(path string, into any) {
		body, err := r.client.Discovery().RESTClient().Get().RequestURI(path).SetHeader("Accept", "application/json").DoRaw(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(body, into); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	var v2 struct{ Paths, Definitions map[string]any }
	get("/openapi/v2", &v2)
	var v3 handler3.OpenAPIV3Discovery
	get("/openapi/v3", &v3)

	var lines []string
	add := func(what string, document any) {
		body, err := json.Marshal(withoutOurs(document))
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%s %x", what, sha256.Sum256(body)))
	}
	for path, document := range v2.Paths {
		add("v2 "+path, document)
	}
	for name, document := range v2.Definitions {
		add("v2 "+name, document)
	}
	for path, where := range v3.Paths {
		var document map[string]any
		get(where.ServerRelativeURL, &document)
		add("v3 "+path, document)
	}
	slices.Sort(lines)
	return lines
}

// withoutOurs leaves our API group out of the lists of groups that types common to all, like DeleteOptions, have.
func withoutOurs(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			value[key] = withoutOurs(inner)
		}
	case []any:
		value = slices.DeleteFunc(value, func(inner any) bool {
			fields, ok := inner.(map[string]any)
			return ok && fields["group"] == v1alpha1.GroupName
		})
		for i := range value {
			value[i] = withoutOurs(value[i])
		}
		return value
	}
	return value
}

// TestServedLikeUpstream starts upstream's server and ours with the same flags, and compares all that can be seen from
// outside: what they serve and which hooks they ran.
func TestServedLikeUpstream(t *testing.T) {
	etcd, dir := startEtcd(t), t.TempDir()

	upstream := startUpstream(t, dir, etcd)
	want := upstream.served(t)
	wantPaths, wantChecks := upstream.lines(t, "/"), upstream.lines(t, "/readyz?verbose")
	wantDocuments := upstream.documents(t)
	if err := upstream.stop(); err != nil {
		t.Error(err)
	}
	if *update {
		if err := os.WriteFile(servedFile, []byte(strings.Join(want, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	ours := startOurs(t, dir, etcd, "--lifecycle-controllers=off", "--encryption-provider-config="+encryptionConfig(t))
	defer func() {
		if err := ours.stop(); err != nil {
			t.Error(err)
		}
	}()
	golden, err := os.ReadFile(servedFile)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "upstream serves, against "+filepath.Base(servedFile), want, strings.Split(strings.TrimSpace(string(golden)), "\n"))
	compare(t, "served", ours.served(t), want)
	compare(t, "paths", ours.lines(t, "/"), wantPaths)
	compare(t, "health checks", ours.lines(t, "/readyz?verbose"), wantChecks)
	compare(t, "OpenAPI", ours.documents(t), wantDocuments)
	t.Run("anonymous", func(t *testing.T) { testAnonymous(t, ours) })
	t.Run("kubernetes service", func(t *testing.T) { testKubernetesService(t, ours) })
	t.Run("encryption at rest", func(t *testing.T) { testEncryption(t, ours, etcd) })
}

// isOurs reports whether a line is about what upstream does not have: the API group of datastores and the hook that makes its role.
func isOurs(line string) bool {
	return strings.Contains(line, v1alpha1.GroupName) || strings.Contains(line, v1alpha1.Datastore{}.OpenAPIModelName()) || strings.Contains(line, datastoreRolesHook)
}

func compare(t *testing.T, what string, got, want []string) {
	t.Helper()
	got = slices.DeleteFunc(slices.Clone(got), isOurs)
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("%s: missing %q", what, line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("%s: too much: %q", what, line)
		}
	}
	if !t.Failed() && !slices.Equal(got, want) {
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: the order differs: line %d is %q, want %q", what, i, got[i], want[i])
				break
			}
		}
	}
}

func testAnonymous(t *testing.T, r *running) {
	client, err := rest.HTTPClientFor(rest.AnonymousClientConfig(r.config))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"/livez": 200, "/readyz": 200, "/healthz": 200, "/version": 200,
		"/": 401, "/api": 401, "/apis": 401, "/metrics": 401, "/openapi/v2": 401, "/api/v1/namespaces": 401, "/readyz/etcd": 401,
	} {
		response, err := client.Get(r.config.Host + path)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("an anonymous request for %s gets %d %s, want %d", path, response.StatusCode, http.StatusText(response.StatusCode), want)
		}
	}
}

func testKubernetesService(t *testing.T, r *running) {
	// The controller that makes it waits until the server is ready.
	err := wait.PollUntilContextTimeout(context.Background(), readyPoll, time.Minute, true, func(ctx context.Context) (bool, error) {
		service, err := r.client.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err == nil && service.Spec.ClusterIP != "10.43.0.1" {
			t.Errorf("the service has the address %s, want 10.43.0.1", service.Spec.ClusterIP)
		}
		return true, err
	})
	if err != nil {
		t.Error(err)
	}
}

func encryptionConfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(path, []byte(`apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - aescbc:
      keys: [{name: key1, secret: MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// testEncryption looks at what the storage that we build ourselves writes.
func testEncryption(t *testing.T, r *running, endpoint string) {
	ctx := context.Background()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "hidden"}, StringData: map[string]string{"word": "xyzzy"}}
	if _, err := r.client.CoreV1().Secrets("default").Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "open"}, Data: map[string]string{"word": "plugh"}}
	if _, err := r.client.CoreV1().ConfigMaps("default").Create(ctx, config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	stored := func(key string) string {
		response, err := client.Get(ctx, key)
		if err != nil || len(response.Kvs) != 1 {
			t.Fatalf("%s: %v, %d values", key, err, len(response.Kvs))
		}
		return string(response.Kvs[0].Value)
	}
	if got := stored("/ours/secrets/default/hidden"); !strings.HasPrefix(got, "k8s:enc:aescbc:v1:key1:") || strings.Contains(got, "xyzzy") {
		t.Errorf("the secret is stored as %q", got)
	}
	if got := stored("/ours/configmaps/default/open"); !strings.HasPrefix(got, "k8s\x00") || !strings.Contains(got, "plugh") {
		t.Errorf("the config map is stored as %q, want protobuf", got)
	}
	got, err := r.client.CoreV1().Secrets("default").Get(ctx, "hidden", metav1.GetOptions{})
	if err != nil || string(got.Data["word"]) != "xyzzy" {
		t.Errorf("the secret reads %q, %v", got.Data["word"], err)
	}
}
