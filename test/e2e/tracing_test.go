package e2e

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// collector takes spans by OTLP.
type collector struct {
	coltracepb.UnimplementedTraceServiceServer
	address string
	mu      sync.Mutex // guards spans
	spans   []*tracepb.Span
}

func (c *collector) Export(_ context.Context, r *coltracepb.ExportTraceServiceRequest) (*coltracepb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
	return &coltracepb.ExportTraceServiceResponse{}, nil
}

// trace returns the spans of a trace by their ids.
func (c *collector) trace(id []byte) map[string]*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	spans := map[string]*tracepb.Span{}
	for _, span := range c.spans {
		if slices.Equal(span.TraceId, id) {
			spans[string(span.SpanId)] = span
		}
	}
	return spans
}

func startCollector(t *testing.T) *collector {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, server := &collector{address: listener.Addr().String()}, grpc.NewServer()
	coltracepb.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(listener) }() // ends with Stop
	t.Cleanup(server.Stop)
	return c
}

// TestTracing follows one request of a client that traces, from the API server down to the datastore.
func TestTracing(t *testing.T) {
	t.Parallel()
	collector := startCollector(t)
	s := start(t, t.TempDir(), "--tracing-config-file="+writeFile(t, fmt.Sprintf(
		"apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: %q\n", collector.address)))
	traceID, parent := make([]byte, 16), make([]byte, 8)
	for _, id := range [][]byte{traceID, parent} {
		if _, err := rand.Read(id); err != nil {
			t.Fatal(err)
		}
	}
	config := rest.CopyConfig(s.config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			r.Header.Set("Traceparent", fmt.Sprintf("00-%s-%s-01", hex.EncodeToString(traceID), hex.EncodeToString(parent)))
			return next.RoundTrip(r)
		})
	})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "traced"}}
	if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.stop(t) // which sends what is left of the spans

	spans := collector.trace(traceID)
	var way []string // from the datastore up to the client's span
	for _, span := range spans {
		if span.Name != "etcdserverpb.KV/Txn" || span.Kind != tracepb.Span_SPAN_KIND_SERVER {
			continue
		}
		for ; span != nil; span = spans[string(span.ParentSpanId)] {
			way = append(way, span.Name)
			if slices.Equal(span.ParentSpanId, parent) {
				way = append(way, "client")
			}
		}
	}
	slices.Reverse(way)
	const first, last = "client > POST /api/v1/namespaces/{:namespace}/configmaps > ", " > Create > Create etcd3 > etcdserverpb.KV/Txn > etcdserverpb.KV/Txn"
	if got := strings.Join(way, " > "); !strings.HasPrefix(got, first) || !strings.HasSuffix(got, last) {
		t.Errorf("the way of the request is %q, want %q and in the end %q: once in the client of the datastore, once in its server", got, first, last)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
