package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// crowd is a priority level with one place and a short queue, and what sends the user there who floods the server.
const crowd = `
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: crowd}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 1
    borrowingLimitPercent: 0
    limitResponse: {type: Queue, queuing: {queues: 1, handSize: 1, queueLengthLimit: 5}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: crowd}
spec:
  matchingPrecedence: 500
  priorityLevelConfiguration: {name: crowd}
  rules:
  - subjects: [{kind: User, user: {name: flood}}]
    resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], namespaces: ["*"], clusterScope: true}]
`

const (
	floodClients   = 40
	systemRequests = 30
	// systemLatency bounds a request of the system while the flood lasts, on a machine that tests keep busy.
	systemLatency = 5 * time.Second
)

// flood is what a crowd of clients of one user got for their answers.
type flood struct {
	served, rejected atomic.Int64
	other            atomic.Value // an answer that is neither
}

// begin lists and watches until ctx ends. Who is rejected comes again at once, whatever the answer says.
func (f *flood) begin(ctx context.Context, client *http.Client, url string) *sync.WaitGroup {
	var clients sync.WaitGroup
	for i := range floodClients {
		query := "?limit=500"
		if i%4 == 0 {
			query = "?watch=true&timeoutSeconds=1"
		}
		clients.Go(func() {
			for ctx.Err() == nil {
				f.request(ctx, client, url+query)
			}
		})
	}
	return &clients
}

func (f *flood) request(ctx context.Context, client *http.Client, url string) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		f.other.Store(err.Error())
		return
	}
	answer, err := client.Do(request)
	if err != nil {
		if ctx.Err() == nil {
			f.other.Store(err.Error())
		}
		return
	}
	_, _ = io.Copy(io.Discard, answer.Body) // the end of the test cuts it off
	_ = answer.Body.Close()
	seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
	switch {
	case answer.StatusCode == http.StatusOK:
		f.served.Add(1)
	case answer.StatusCode == http.StatusTooManyRequests && seconds >= 1:
		f.rejected.Add(1)
	default:
		f.other.Store(fmt.Sprintf("%s, Retry-After %q", answer.Status, answer.Header.Get("Retry-After")))
	}
}

// TestFairness floods a small server with one user's requests, and wants those of the system to get through all the same.
func TestFairness(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := start(t, t.TempDir(), "--max-requests-inflight=6", "--max-mutating-requests-inflight=4")
	ns := s.namespace(t, "crowded")
	for i := range 50 {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("a%d", i)}, Data: map[string]string{"a": strings.Repeat("a", 4<<10)}}
		if _, err := s.client.CoreV1().ConfigMaps(ns).Create(ctx, object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.kubectlIn(t, crowd, "apply", "-f", "-")
	s.kubectl(t, "create", "clusterrolebinding", "flood", "--clusterrole=view", "--user=flood")
	config := rest.CopyConfig(s.config)
	config.Impersonate.UserName = "flood"
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	url := s.config.Host + "/api/v1/namespaces/" + ns + "/configmaps"
	eventually(t, "the user has a role and the priority level", func() error {
		var f flood
		f.request(ctx, client, url)
		if rejectable := s.counted(t, `apiserver_flowcontrol_dispatched_requests_total{flow_schema="crowd"`); f.served.Load() == 0 || rejectable == 0 {
			return fmt.Errorf("%v, %g requests", f.other.Load(), rejectable)
		}
		return nil
	})

	manager, node := s.as(t, "system:kube-controller-manager"), s.as(t, "system:node:n1", "system:nodes")
	beat := systemBeats(t, manager, node)
	var f flood
	flooding, cancel := context.WithCancel(ctx)
	clients := f.begin(flooding, client, url)
	eventually(t, "the flood is rejected", func() error {
		if f.rejected.Load() == 0 {
			return fmt.Errorf("%d served, %v", f.served.Load(), f.other.Load())
		}
		return nil
	})
	before, slowest := f.rejected.Load(), time.Duration(0)
	for range systemRequests {
		for what, request := range beat {
			began := time.Now()
			if err := request(ctx); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			slowest = max(slowest, time.Since(began))
		}
	}
	during := f.rejected.Load() - before
	cancel()
	clients.Wait()
	if slowest > systemLatency {
		t.Errorf("a request of the system took %s, want at most %s", slowest, systemLatency)
	}
	if during == 0 || f.served.Load() == 0 || f.other.Load() != nil {
		t.Errorf("%d of the flood served, %d rejected while the system worked, other answers: %v", f.served.Load(), during, f.other.Load())
	}
	const rejected = `apiserver_flowcontrol_rejected_requests_total{`
	if its := s.counted(t, rejected+`flow_schema="crowd"`); its < float64(during) {
		t.Errorf("the metric has %g rejections of the flood, want at least %d", its, during)
	}
	if others := s.counted(t, rejected+`flow_schema="system-`); others != 0 {
		t.Errorf("%g requests of the system were rejected", others)
	}
	t.Logf("%d served and %d rejected of the flood; the slowest request of the system took %s", f.served.Load(), f.rejected.Load(), slowest)
}

// systemBeats are the requests that keep a cluster alive: a leader and a node say that they are there. No try is made again.
func systemBeats(t *testing.T, manager, node kubernetes.Interface) map[string]func(context.Context) error {
	t.Helper()
	ctx := t.Context()
	beats := map[string]func(context.Context) error{}
	for what, c := range map[string]struct {
		client    kubernetes.Interface
		namespace string
		name      string
	}{
		"the leader's lease": {manager, "kube-system", "kube-controller-manager"},
		"the node's lease":   {node, "kube-node-lease", "n1"},
	} {
		leases := c.client.CoordinationV1().Leases(c.namespace)
		lease, err := leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: c.name}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		beats[what] = func(ctx context.Context) error {
			lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
			return c.client.CoordinationV1().RESTClient().Put().Namespace(c.namespace).Resource("leases").Name(c.name).
				Body(lease).MaxRetries(0).Do(ctx).Into(lease)
		}
	}
	made, err := node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	beats["the node's status"] = func(ctx context.Context) error {
		made.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
		return node.CoreV1().RESTClient().Put().Resource("nodes").Name("n1").SubResource("status").Body(made).MaxRetries(0).Do(ctx).Into(made)
	}
	return beats
}
