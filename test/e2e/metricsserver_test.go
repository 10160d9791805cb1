package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestMetricsServer installs metrics-server with its own manifests, on a network that only an egress proxy reaches, and asks kubectl top.
func TestMetricsServer(t *testing.T) {
	t.Parallel()
	program := build(t, "metrics-server", "sigs.k8s.io/metrics-server/cmd/metrics-server")

	const endpoint, endpointPort = "192.0.2.40", 10250
	port := freePort(t)
	socket := filepath.Join(t.TempDir(), "proxy.sock")
	startProxy(t, socket, map[string]string{fmt.Sprintf("%s:%d", endpoint, endpointPort): fmt.Sprintf("127.0.0.1:%d", port)})
	s := start(t, t.TempDir(), "--enable-aggregator-routing", "--egress-selector-config-file="+writeFile(t, fmt.Sprintf(egressConfig, socket)))

	ns := s.namespace(t, "metered")
	node := startMeteredNode(t, s, ns)
	s.runningPod(t, ns, "127.0.0.1", int32(node.Listener.Addr().(*net.TCPAddr).Port), "192.0.2.10")
	s.kubectl(t, "patch", "node", "stand-in", "--subresource=status", "--patch", `{"status":{"allocatable":{"cpu":"1","memory":"1Gi"}}}`)

	manifests := filepath.Join(moduleDir(t, "metrics-server", "sigs.k8s.io/metrics-server"), "manifests", "base")
	contains(t, s.kubectl(t, "apply", "--kustomize", manifests), "deployment.apps/metrics-server created", "apiservice.apiregistration.k8s.io/v1beta1.metrics.k8s.io created")
	s.available(t, "v1beta1.metrics.k8s.io", "False", "EndpointsNotFound")
	kubeconfig := s.kubeconfigOf(t, "kube-system", "metrics-server")
	run(t, program, "--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir="+t.TempDir(),
		"--kubelet-insecure-tls", "--kubelet-use-node-status-port", "--kubelet-preferred-address-types=InternalIP", "--metric-resolution=10s", "--kubelet-request-timeout=5s")
	s.kubectlIn(t, fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: metrics-server, namespace: kube-system, labels: {kubernetes.io/service-name: metrics-server}}
addressType: IPv4
ports: [{name: https, port: %d, protocol: TCP}]
endpoints: [{addresses: [%s], conditions: {ready: true}}]
`, endpointPort, endpoint), "create", "-f", "-")
	s.available(t, "v1beta1.metrics.k8s.io", "True", "Passed")

	contains(t, s.kubectl(t, "api-resources", "--api-group=metrics.k8s.io"), "NodeMetrics", "PodMetrics") // top believes kubectl's cache, which this renews
	eventually(t, "metrics-server has read the kubelet twice", func() error {
		_, errs, err := s.tryKubectl("", "top", "node", "stand-in")
		if err != nil {
			err = fmt.Errorf("%w: %s", err, errs)
		}
		return err
	})
	for _, top := range []struct{ args, want string }{
		{"nodes --no-headers", "stand-in 250m 25% 512Mi 50%"},
		{"pods --no-headers --namespace=" + ns, "a 100m 64Mi"},
		{"pods --no-headers --containers --namespace=" + ns, "a main 100m 64Mi"},
	} {
		out := s.kubectl(t, append([]string{"top"}, strings.Fields(top.args)...)...)
		if got := strings.Join(strings.Fields(out), " "); got != top.want {
			t.Errorf("top %s says %q, want %q", top.args, got, top.want)
		}
	}
	// Its roles are aggregated to the built-in ones.
	contains(t, s.kubectl(t, "get", "clusterrole", "view", "-o", "jsonpath={.rules[*].apiGroups}"), "metrics.k8s.io")
}

// startMeteredNode is what metrics-server asks of a kubelet. The node uses a quarter of a core, the one container of pod a in ns a tenth.
func startMeteredNode(t *testing.T, s *server, ns string) *httptest.Server {
	t.Helper()
	began := time.Now().Add(-time.Hour)
	node := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// As a kubelet does, it asks the API server who this is.
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		review, err := s.client.AuthenticationV1().TokenReviews().Create(r.Context(),
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil || review.Status.User.Username != "system:serviceaccount:kube-system:metrics-server" {
			http.Error(w, "not for you", http.StatusUnauthorized)
			return
		}
		if r.URL.Path != "/metrics/resource" {
			http.NotFound(w, r)
			return
		}
		elapsed := time.Since(began).Milliseconds()
		seconds, now := float64(elapsed)/1000, began.UnixMilli()+elapsed
		container := fmt.Sprintf("{container=\"main\",namespace=%q,pod=\"a\"}", ns)
		fmt.Fprintf(w, "node_cpu_usage_seconds_total %.6f %d\n", seconds/4, now)
		fmt.Fprintf(w, "node_memory_working_set_bytes %d %d\n", 512<<20, now)
		fmt.Fprintf(w, "container_cpu_usage_seconds_total%s %.6f %d\n", container, seconds/10, now)
		fmt.Fprintf(w, "container_memory_working_set_bytes%s %d %d\n", container, 64<<20, now)
		fmt.Fprintf(w, "container_start_time_seconds%s %d\n", container, began.Unix())
	}))
	t.Cleanup(node.Close)
	return node
}
