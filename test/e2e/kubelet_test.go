package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
	"k8s.io/utils/ptr"
)

// kubelet speaks the API of a kubelet, to nobody but the API server. Its containers are tiny: they answer in upper case.
type kubelet struct{ server *httptest.Server }

func startKubelet(t *testing.T, clientCA string) *kubelet {
	t.Helper()
	ca, err := os.ReadFile(clientCA)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	k := &kubelet{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "log of %s, last %s lines\n", r.PathValue("container"), r.FormValue("tailLines"))
	})
	mux.HandleFunc("GET /stats/summary", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"node":"stand-in"}`) })
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		options, err := remotecommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		remotecommand.ServeExec(w, r, k, r.PathValue("pod"), "", r.PathValue("container"), r.URL.Query()["command"], options,
			patience, patience, remotecommand.SupportedStreamingProtocols)
	})
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		options, err := remotecommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		remotecommand.ServeAttach(w, r, k, r.PathValue("pod"), "", r.PathValue("container"), options,
			patience, patience, remotecommand.SupportedStreamingProtocols)
	})
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		portforward.ServePortForward(w, r, k, r.PathValue("pod"), "", &portforward.V4Options{}, patience, patience, portforward.SupportedProtocols)
	})
	k.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := r.TLS.PeerCertificates[0].Subject.CommonName; name != "kube-apiserver-kubelet-client" {
			http.Error(w, "not for "+name, http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	k.server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	k.server.StartTLS()
	t.Cleanup(k.server.Close)
	return k
}

func (k *kubelet) port() int32 { return int32(k.server.Listener.Addr().(*net.TCPAddr).Port) }

// ExecInContainer runs "upper", which copies its input in upper case, or any other command, which fails with code 3.
func (k *kubelet) ExecInContainer(_ context.Context, _, _, container string, cmd []string, in io.Reader, out, errs io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if cmd[0] != "upper" {
		fmt.Fprintf(errs, "%s: no such command in %s\n", cmd[0], container)
		return utilexec.CodeExitError{Err: errors.New("it failed"), Code: 3}
	}
	return upper(in, out)
}

// AttachContainer attaches to a container that does the same.
func (k *kubelet) AttachContainer(_ context.Context, _, _, _ string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	return upper(in, out)
}

// PortForward is a server in the pod that answers one line with the line in upper case and the port.
func (k *kubelet) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	line, err := bufio.NewReader(stream).ReadString('\n')
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stream, "%d %s", port, strings.ToUpper(line))
	return err
}

func upper(in io.Reader, out io.Writer) error {
	text, err := io.ReadAll(in)
	if err == nil {
		_, err = io.WriteString(out, strings.ToUpper(string(text)))
	}
	return err
}

// runningPod registers a node with a kubelet at the given address, and a running pod on it.
func (s *server) runningPod(t *testing.T, ns, nodeAddress string, port int32, podIP string) {
	t.Helper()
	ctx := t.Context()
	node, err := s.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "stand-in"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = port
	if _, err := s.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.serviceAccount(t, ns)
	p := pod("a")
	p.Spec.NodeName = "stand-in"
	p.Spec.Containers[0].Stdin = true
	if p, err = s.client.CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, podIP, []corev1.PodIP{{IP: podIP}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	if _, err := s.client.CoreV1().Pods(ns).UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestKubelet has kubectl reach a container through the API server and a kubelet.
func TestKubelet(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	k := startKubelet(t, filepath.Join(s.dir, "pki", "ca.crt"))
	ns := s.namespace(t, "kubelet")
	s.runningPod(t, ns, "127.0.0.1", k.port(), "192.0.2.10")
	s.useKubelet(t, ns)

	// It is the certificate that lets the API server in.
	if response, err := k.server.Client().Get(k.server.URL + "/stats/summary"); err == nil {
		response.Body.Close()
		t.Error("the kubelet lets somebody in without a certificate")
	}
}

func (s *server) useKubelet(t *testing.T, ns string) {
	in := "--namespace=" + ns
	if got := s.kubectl(t, "logs", "a", in, "--tail=7"); got != "log of main, last 7 lines\n" {
		t.Errorf("logs: %q", got)
	}
	for _, protocol := range []struct {
		name      string
		websocket bool
	}{{"WebSocket", true}, {"SPDY", false}} {
		t.Run(protocol.name, func(t *testing.T) {
			env := fmt.Sprintf("KUBECTL_REMOTE_COMMAND_WEBSOCKETS=%v", protocol.websocket)
			before := s.counted(t, "apiserver_stream_translator_requests_total")
			stream := func(stdin string, args ...string) (out, errs string, err error) {
				command := s.kubectlCommand(t.Context(), args...)
				command.Env = append(command.Environ(), env)
				command.Stdin = strings.NewReader(stdin)
				var o, e strings.Builder
				command.Stdout, command.Stderr = &o, &e
				err = command.Run()
				return o.String(), e.String(), err
			}
			if out, errs, err := stream("hello\n", "exec", "-i", "a", in, "--", "upper"); err != nil || out != "HELLO\n" {
				t.Errorf("exec: %q, %q, %v", out, errs, err)
			}
			out, errs, err := stream("", "exec", "a", in, "--", "nothing")
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 3 || out != "" || !strings.Contains(errs, "nothing: no such command in main") {
				t.Errorf("a command that fails: %q, %q, %v, want exit code 3", out, errs, err)
			}
			if out, errs, err := stream("attached\n", "attach", "-i", "a", in); err != nil || !strings.Contains(out, "ATTACHED\n") {
				t.Errorf("attach: %q, %q, %v", out, errs, err)
			}
			if used := s.counted(t, "apiserver_stream_translator_requests_total") > before; used != protocol.websocket {
				t.Errorf("the client used WebSocket: %v, want %v", used, protocol.websocket)
			}
			before = s.counted(t, "apiserver_stream_tunnel_requests_total")
			s.forward(t, in, fmt.Sprintf("KUBECTL_PORT_FORWARD_WEBSOCKETS=%v", protocol.websocket))
			if used := s.counted(t, "apiserver_stream_tunnel_requests_total") > before; used != protocol.websocket {
				t.Errorf("port-forward used WebSocket: %v, want %v", used, protocol.websocket)
			}
		})
	}
}

// forward sends a line through kubectl port-forward.
func (s *server) forward(t *testing.T, in, env string) {
	t.Helper()
	command := s.kubectlCommand(t.Context(), "port-forward", "pod/a", in, ":80", "--address=127.0.0.1")
	command.Env = append(command.Environ(), env)
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = command.Process.Kill()
		_ = command.Wait() // killed
	}()
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	if err != nil || address == "" {
		t.Fatalf("port-forward says %q (%v)", line, err)
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(conn, "through")
	if got, err := bufio.NewReader(conn).ReadString('\n'); got != "80 THROUGH\n" {
		t.Errorf("through the forwarded port came %q (%v)", got, err)
	}
}

// counted sums up a counter of the API server.
func (s *server) counted(t *testing.T, name string) float64 {
	t.Helper()
	metrics, err := s.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for line := range strings.Lines(string(metrics)) {
		if !strings.HasPrefix(line, name) {
			continue
		}
		value, err := strconv.ParseFloat(line[strings.LastIndex(line, " ")+1:len(line)-1], 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += value
	}
	return sum
}

// egressConfig has the API server reach everything in the cluster through an HTTP CONNECT proxy on a socket.
const egressConfig = `
apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport: {uds: {udsName: %s}}
`

// TestEgress puts the nodes, pods and services on a network that only an HTTP CONNECT proxy reaches: their addresses exist
// nowhere else.
func TestEgress(t *testing.T) {
	t.Parallel()
	const nodeAddress, podAddress, kubeletPort, podPort = "192.0.2.20", "192.0.2.10", 10250, 8080
	dir := t.TempDir()
	inPod := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "pod serves %s", r.URL.Path) }))
	t.Cleanup(inPod.Close)
	network := map[string]string{net.JoinHostPort(podAddress, strconv.Itoa(podPort)): inPod.Listener.Addr().String()}
	socket := filepath.Join(dir, "proxy.sock")
	startProxy(t, socket, network)
	s := start(t, filepath.Join(dir, "data"), "--egress-selector-config-file="+writeFile(t, fmt.Sprintf(egressConfig, socket)))
	k := startKubelet(t, filepath.Join(s.dir, "pki", "ca.crt"))
	network[net.JoinHostPort(nodeAddress, strconv.Itoa(kubeletPort))] = k.server.Listener.Addr().String() // before any request

	ctx, ns := t.Context(), s.namespace(t, "egress")
	s.runningPod(t, ns, nodeAddress, kubeletPort, podAddress)
	s.useKubelet(t, ns)

	// The proxy subresources never lead to an address of the API server's own machine.
	if got := s.kubectl(t, "get", "--raw", "/api/v1/nodes/stand-in/proxy/stats/summary"); got != `{"node":"stand-in"}` {
		t.Errorf("nodes/proxy: %q", got)
	}
	if got := s.kubectl(t, "get", "--raw", fmt.Sprintf("/api/v1/namespaces/egress/pods/a:%d/proxy/x", podPort)); got != "pod serves /x" {
		t.Errorf("pods/proxy: %q", got)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
	if _, err := s.client.CoreV1().Services(ns).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](podPort), Protocol: ptr.To(corev1.ProtocolTCP)}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{podAddress}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: "a"}, // proxied to only if the pod has the address
		}},
	}
	if _, err := s.client.DiscoveryV1().EndpointSlices(ns).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "services/proxy reaches the pod", func() error { // the server learns of the endpoints from a watch
		got, err := s.client.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces/egress/services/web:http/proxy/y").DoRaw(ctx)
		if err == nil && string(got) != "pod serves /y" {
			err = fmt.Errorf("it says %q", got)
		}
		return err
	})
}

// startProxy is an HTTP CONNECT proxy on a Unix socket into a network where addresses mean what the map says.
func startProxy(t *testing.T, socket string, network map[string]string) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		address, ok := network[r.Host]
		if r.Method != http.MethodConnect || !ok {
			http.Error(w, "there is no "+r.Host+" here", http.StatusBadGateway)
			return
		}
		target, err := net.Dial("tcp", address)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer target.Close()
		w.WriteHeader(http.StatusOK)
		client, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer client.Close()
		go func() {
			_, _ = io.Copy(target, buffered) // ends with the connections
			_ = target.(*net.TCPConn).CloseWrite()
		}()
		_, _ = io.Copy(client, target)
	})}
	go func() { _ = proxy.Serve(listener) }() // ends when the test does
	t.Cleanup(func() { _ = proxy.Close() })
}
