package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubase/kubase/test/bench/process"
	"github.com/kubase/kubase/test/bench/table"
)

// load says how much is done.
type load struct {
	workers  int
	duration time.Duration
}

const (
	namespaces  = 20
	connections = 4
	valueBytes  = 1024
	// Consistent lists are made by so many clients, of a namespace with so many objects, while another resource is updated so often a
	// second.
	listers, listed, updatesPerSecond = 4, 20, 100
	watchers                          = 10
)

// client is what the workloads of one system share.
type client struct {
	load
	ctx     context.Context
	clients []*kubernetes.Clientset
	names   atomic.Int64
	value   string
	// Of each worker: what it updates, as it was answered last.
	maps   []*corev1.ConfigMap
	leases []*coordinationv1.Lease
}

func measure(ctx context.Context, s system, l load) (table.Result, error) {
	dir, err := os.MkdirTemp("", "kubase-bench-data-")
	if err != nil {
		return table.Result{}, err
	}
	defer os.RemoveAll(dir)
	processes, port, err := s.start(ctx, dir)
	for _, p := range processes {
		defer p.Stop()
	}
	if err != nil {
		return table.Result{}, err
	}
	keys := s.keys
	if keys == "" {
		keys = dir
	}
	config, err := connect(ctx, keys, port)
	if err != nil {
		return table.Result{}, err
	}
	c := &client{load: l, ctx: ctx, value: strings.Repeat("v", valueBytes)}
	for range connections {
		own := *config
		own.Dial = (&net.Dialer{}).DialContext // configurations with the same one share a connection
		k, err := kubernetes.NewForConfig(&own)
		if err != nil {
			return table.Result{}, err
		}
		c.clients = append(c.clients, k)
	}
	if err := c.prepare(); err != nil {
		return table.Result{}, err
	}
	return c.run(s.name, processes)
}

func (c *client) run(name string, processes []*process.Process) (table.Result, error) {
	r := table.Result{System: name}
	cpu := func() (sum time.Duration) {
		for _, p := range processes {
			sum += p.CPU()
		}
		return sum
	}
	for _, w := range []struct {
		name string
		call func(w int) error
	}{
		{"create ConfigMap", c.createMap},
		{"create Pod", c.createPod},
		{"update ConfigMap", c.updateMap},
		{"apply ConfigMap", c.applyMap},
		{"get ConfigMap", c.getMap},
		{"renew Lease", c.renewLease},
		{"mixed", c.mixed},
	} {
		used, began := cpu(), time.Now()
		rate, err := c.repeat(w.call)
		if err != nil {
			return r, fmt.Errorf("%s: %w", w.name, err)
		}
		each := (cpu() - used).Seconds() / time.Since(began).Seconds() / rate * 1e6
		fmt.Fprintf(os.Stderr, "%-22s %-18s %7.0f/s %6.0f µs of the servers' CPU each\n", name, w.name, rate, each)
		r.Rows = append(r.Rows, table.Row{Name: w.name, Value: rate, Unit: "/s"})
	}
	rate, latencies, err := c.listWhileWriting()
	if err != nil {
		return r, fmt.Errorf("consistent lists: %w", err)
	}
	watched, err := c.watchLatency()
	if err != nil {
		return r, fmt.Errorf("watch: %w", err)
	}
	var all, own float64
	for _, p := range processes {
		a, o := p.Memory()
		all, own = all+a, own+o
	}
	r.Rows = append(r.Rows,
		table.Row{Name: "consistent lists", Value: rate, Unit: "/s"},
		table.Row{Name: "consistent list p50", Value: percentile(latencies, 50), Unit: "ms", Lower: true},
		table.Row{Name: "consistent list p99", Value: percentile(latencies, 99), Unit: "ms", Lower: true},
		table.Row{Name: "watch p99", Value: percentile(watched, 99), Unit: "ms", Lower: true},
		table.Row{Name: "CPU in all", Value: cpu().Seconds(), Unit: "s", Lower: true},
		table.Row{Name: "memory", Value: all, Unit: "MiB", Lower: true},
		table.Row{Name: "memory, own", Value: own, Unit: "MiB", Lower: true})
	return r, nil
}

func percentile(all []time.Duration, p int) float64 {
	slices.Sort(all)
	return float64(all[len(all)*p/100].Microseconds()) / 1000
}

func (c *client) conn(w int) *kubernetes.Clientset { return c.clients[w%len(c.clients)] }

func namespace(i int) string { return fmt.Sprintf("bench-%02d", i%namespaces) }

func (c *client) name() string { return fmt.Sprintf("bench-%07d", c.names.Add(1)) }

func (c *client) configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"key": c.value}}
}

// prepare makes namespaces with the default service account that pods need, and what each worker updates.
func (c *client) prepare() error {
	for i := range namespaces {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace(i)}}
		if _, err := c.conn(i).CoreV1().Namespaces().Create(c.ctx, ns, metav1.CreateOptions{}); err != nil {
			return err
		}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		if _, err := c.conn(i).CoreV1().ServiceAccounts(ns.Name).Create(c.ctx, account, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for w := range c.workers {
		m, err := c.conn(w).CoreV1().ConfigMaps(namespace(w)).Create(c.ctx, c.configMap(c.name()), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: m.Name}}
		l, err := c.conn(w).CoordinationV1().Leases(namespace(w)).Create(c.ctx, lease, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		c.maps, c.leases = append(c.maps, m), append(c.leases, l)
	}
	return nil
}

// repeat lets all workers call for a while and returns calls a second.
func (c *client) repeat(call func(w int) error) (float64, error) {
	var group sync.WaitGroup
	var calls atomic.Int64
	failed := make(chan error, c.workers)
	began := time.Now()
	for w := range c.workers {
		group.Go(func() {
			for time.Since(began) < c.duration {
				if err := call(w); err != nil {
					failed <- err
					return
				}
				calls.Add(1)
			}
		})
	}
	group.Wait()
	close(failed)
	return float64(calls.Load()) / time.Since(began).Seconds(), errors.Join(slices.Collect(func(yield func(error) bool) {
		for err := range failed {
			if !yield(err) {
				return
			}
		}
	})...)
}

func (c *client) createMap(w int) error {
	_, err := c.conn(w).CoreV1().ConfigMaps(namespace(w)).Create(c.ctx, c.configMap(c.name()), metav1.CreateOptions{})
	return err
}

func (c *client) createPod(w int) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: c.name(), Labels: map[string]string{"app": "bench"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/bench:1", Env: []corev1.EnvVar{{Name: "VALUE", Value: c.value}}}}},
	}
	_, err := c.conn(w).CoreV1().Pods(namespace(w)).Create(c.ctx, pod, metav1.CreateOptions{})
	return err
}

func (c *client) updateMap(w int) error {
	m := c.maps[w].DeepCopy()
	m.Data["n"] = strconv.Itoa(rand.Int())
	m, err := c.conn(w).CoreV1().ConfigMaps(m.Namespace).Update(c.ctx, m, metav1.UpdateOptions{})
	if err == nil {
		c.maps[w] = m
	}
	return err
}

func (c *client) applyMap(w int) error {
	m := applycorev1.ConfigMap("applied-"+c.maps[w].Name, namespace(w)).WithData(map[string]string{"key": c.value, "n": strconv.Itoa(rand.Int())})
	_, err := c.conn(w).CoreV1().ConfigMaps(namespace(w)).Apply(c.ctx, m, metav1.ApplyOptions{FieldManager: "bench"})
	return err
}

func (c *client) getMap(w int) error {
	_, err := c.conn(w).CoreV1().ConfigMaps(namespace(w)).Get(c.ctx, c.maps[w].Name, metav1.GetOptions{})
	return err
}

func (c *client) renewLease(w int) error {
	l := c.leases[w].DeepCopy()
	now := metav1.NowMicro()
	l.Spec.RenewTime = &now
	l, err := c.conn(w).CoordinationV1().Leases(l.Namespace).Update(c.ctx, l, metav1.UpdateOptions{})
	if err == nil {
		c.leases[w] = l
	}
	return err
}

// mixed is five gets, two updates, a lease renewed, a pod created, and a list of leases in ten.
func (c *client) mixed(w int) error {
	switch n := rand.IntN(10); {
	case n < 5:
		return c.getMap(w)
	case n < 7:
		return c.updateMap(w)
	case n < 8:
		return c.renewLease(w)
	case n < 9:
		return c.createPod(w)
	default:
		_, err := c.conn(w).CoordinationV1().Leases(namespace(w)).List(c.ctx, metav1.ListOptions{})
		return err
	}
}

// listWhileWriting lists a small namespace consistently, that is without a resource version, while another resource is updated.
func (c *client) listWhileWriting() (rate float64, latencies []time.Duration, err error) {
	const ns = "listed"
	if _, err := c.conn(0).CoreV1().Namespaces().Create(c.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
		return 0, nil, err
	}
	for range listed {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: c.name()}, StringData: map[string]string{"key": c.value}}
		if _, err := c.conn(0).CoreV1().Secrets(ns).Create(c.ctx, secret, metav1.CreateOptions{}); err != nil {
			return 0, nil, err
		}
	}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	var writing sync.WaitGroup
	var failed error
	writing.Go(func() {
		ticker := time.NewTicker(time.Second / updatesPerSecond)
		defer ticker.Stop()
		for failed == nil {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				failed = c.updateMap(0)
			}
		}
	})
	all := make([][]time.Duration, listers)
	lists := &client{load: load{workers: listers, duration: c.duration}, ctx: c.ctx, clients: c.clients}
	rate, err = lists.repeat(func(w int) error {
		began := time.Now()
		list, err := c.conn(w).CoreV1().Secrets(ns).List(c.ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) != listed {
			err = fmt.Errorf("%d secrets, want %d", len(list.Items), listed)
		}
		all[w] = append(all[w], time.Since(began))
		return err
	})
	cancel()
	writing.Wait()
	return rate, slices.Concat(all...), errors.Join(err, failed)
}

// watchLatency is the time from the start of an update until a watcher has its event, one update at a time.
func (c *client) watchLatency() ([]time.Duration, error) {
	const updates = 200
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	m := c.maps[0]
	var group sync.WaitGroup
	sent := make([]atomic.Int64, updates)
	latencies := make([][]time.Duration, watchers)
	began := time.Now()
	for w := range watchers {
		watch, err := c.conn(w).CoreV1().ConfigMaps(m.Namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: m.ResourceVersion, FieldSelector: "metadata.name=" + m.Name})
		if err != nil {
			return nil, err
		}
		group.Go(func() {
			for range watch.ResultChan() {
				latencies[w] = append(latencies[w], time.Since(began)-time.Duration(sent[len(latencies[w])].Load()))
				if len(latencies[w]) == updates {
					return
				}
			}
		})
	}
	for i := range updates {
		sent[i].Store(int64(time.Since(began)))
		if err := c.updateMap(0); err != nil {
			return nil, err
		}
	}
	group.Wait()
	all := slices.Concat(latencies...)
	if len(all) != watchers*updates {
		return nil, fmt.Errorf("watchers got %d events, want %d", len(all), watchers*updates)
	}
	return all, nil
}
