package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kubase/kubase/test/bench/table"
)

// load says how much is done.
type load struct {
	keys, stored, dead, workers, valueBytes int
	duration                                time.Duration
	workloads                               []string // empty: all
}

func (l load) includes(workload string) bool {
	return len(l.workloads) == 0 || slices.Contains(l.workloads, workload)
}

const (
	defaultDuration = 5 * time.Second
	namespaces      = 20
	connections     = 4
	watchers        = 50
	pageSize        = 500
	prefix          = "/registry/pods/"
)

// client is what the workloads of one system share.
type client struct {
	load
	ctx     context.Context
	clients []*clientv3.Client
	value   string
	revs    []int64 // mod revision of each key
}

func measure(ctx context.Context, s system, config load) (table.Result, error) {
	dir, err := os.MkdirTemp("", "kubase-bench-data-")
	if err != nil {
		return table.Result{}, err
	}
	defer os.RemoveAll(dir)
	srv, err := start(ctx, s, dir)
	if err != nil {
		return table.Result{}, err
	}
	defer srv.Stop()
	c := &client{load: config, ctx: ctx, value: text(config.valueBytes), revs: make([]int64, config.keys)}
	for range connections {
		conn, err := srv.connect()
		if err != nil {
			return table.Result{}, err
		}
		defer conn.Close()
		c.clients = append(c.clients, conn)
	}
	if err := errors.Join(c.store(), c.age()); err != nil {
		return table.Result{}, err
	}
	r := table.Result{System: s.name}
	for _, w := range []struct {
		name string
		run  func() (float64, error)
	}{
		{"create", c.create},
		{"one-worker create", c.createAlone},
		{"update", c.update},
		{"get", func() (float64, error) { return c.repeat(c.get) }},
		{"list 500", func() (float64, error) { return c.repeat(c.listPage) }},
		{"first page of many", func() (float64, error) { return c.repeat(func(w int) error { return c.listStored(w, 0) }) }},
		{"next pages of many", c.listOn},
		{"list all", func() (float64, error) { return c.repeat(c.listAll) }},
		{"list a namespace", func() (float64, error) { return c.repeat(c.listNamespace) }},
		{"count", func() (float64, error) { return c.repeat(c.count) }},
		{"mixed", func() (float64, error) { return c.repeat(c.mixed) }},
		{"delete", c.delete},
	} {
		if w.name != "create" && !config.includes(w.name) { // the others need its keys
			continue
		}
		if strings.HasSuffix(w.name, "of many") && config.stored < 2*pageSize {
			continue
		}
		used, began := srv.CPU(), time.Now()
		rate, err := w.run()
		if err != nil {
			return table.Result{}, fmt.Errorf("%s: %w", w.name, err)
		}
		used, took := srv.CPU()-used, time.Since(began)
		fmt.Fprintf(os.Stderr, "%-16s %-18s %9.0f/s %6.0f µs of the server's CPU each, %.2f cores\n",
			s.name, w.name, rate, used.Seconds()/took.Seconds()/rate*1e6, used.Seconds()/took.Seconds())
		r.Rows = append(r.Rows, table.Row{Name: w.name, Value: rate, Unit: "/s"})
	}
	if config.includes("watch") {
		latency, err := c.watchLatency()
		if err != nil {
			return table.Result{}, fmt.Errorf("watch: %w", err)
		}
		r.Rows = append(r.Rows, table.Row{Name: "watch p99", Value: latency, Unit: "ms", Lower: true})
	}
	all, own := srv.Memory()
	r.Rows = append(r.Rows, table.Row{Name: "memory", Value: all, Unit: "MiB", Lower: true}, table.Row{Name: "memory, own", Value: own, Unit: "MiB", Lower: true})
	return r, nil
}

func text(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + rand.IntN(26))
	}
	return string(b)
}

func key(i int) string { return fmt.Sprintf("%sns%02d/pod-%06d", prefix, i%namespaces, i) }

func (c *client) conn(i int) *clientv3.Client { return c.clients[i%len(c.clients)] }

// each does n operations with all workers and returns how many a second that were.
func (c *client) each(n, workers int, op func(i int) error) (float64, error) {
	var next atomic.Int64
	errs := make([]error, workers)
	began := time.Now()
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n || errs[w] != nil {
					return
				}
				errs[w] = op(i)
			}
		})
	}
	group.Wait()
	return float64(n) / time.Since(began).Seconds(), errors.Join(errs...)
}

// repeat does an operation with all workers until the time is up.
func (c *client) repeat(op func(worker int) error) (float64, error) {
	var done atomic.Int64
	errs := make([]error, c.workers)
	began := time.Now()
	var group sync.WaitGroup
	for w := range c.workers {
		group.Go(func() {
			for errs[w] == nil && time.Since(began) < c.duration {
				errs[w] = op(w)
				done.Add(1)
			}
		})
	}
	group.Wait()
	return float64(done.Load()) / time.Since(began).Seconds(), errors.Join(errs...)
}

// store puts the keys that make the store large: they sort after those that are measured.
func (c *client) store() error {
	_, err := c.each(c.stored, c.workers, func(i int) error {
		_, err := c.txn(i, storedKey(i), 0, clientv3.OpPut(storedKey(i), c.value))
		return err
	})
	return err
}

// age leaves dead versions among the keys that are measured: keys that were written many times and deleted.
func (c *client) age() error {
	const versions = 1000
	_, err := c.each(c.dead/versions, c.workers, func(i int) error {
		k := key(i%c.keys) + "-dead"
		for range versions - 1 {
			if _, err := c.conn(i).Put(c.ctx, k, c.value); err != nil {
				return err
			}
		}
		_, err := c.conn(i).Delete(c.ctx, k)
		return err
	})
	return err
}

var errConflict = errors.New("a comparison failed that should hold")

// txn is the form in which Kubernetes writes.
func (c *client) txn(i int, key string, revision int64, op clientv3.Op) (int64, error) {
	r, err := c.conn(i).Txn(c.ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).Then(op).Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return 0, err
	}
	if !r.Succeeded {
		return 0, fmt.Errorf("%w: %s", errConflict, key)
	}
	return r.Header.Revision, nil
}

func (c *client) write(i int) (err error) {
	c.revs[i], err = c.txn(i, key(i), c.revs[i], clientv3.OpPut(key(i), c.value))
	return err
}

func (c *client) create() (float64, error) { return c.each(c.keys, c.workers, c.write) }

func (c *client) createAlone() (float64, error) {
	const n = 2000
	return c.each(n, 1, func(i int) error {
		k := fmt.Sprintf("/registry/alone/%06d", i)
		_, err := c.txn(i, k, 0, clientv3.OpPut(k, c.value))
		return err
	})
}

// update writes each key four times; a key is written by one worker at a time.
func (c *client) update() (float64, error) {
	var total float64
	const rounds = 4
	for range rounds {
		rate, err := c.each(c.keys, c.workers, c.write)
		if err != nil {
			return 0, err
		}
		total += 1 / rate
	}
	return rounds / total, nil
}

func (c *client) delete() (float64, error) {
	return c.each(c.keys, c.workers, func(i int) error {
		_, err := c.txn(i, key(i), c.revs[i], clientv3.OpDelete(key(i)))
		c.revs[i] = 0
		return err
	})
}

func (c *client) get(w int) error {
	r, err := c.conn(w).Get(c.ctx, key(rand.IntN(c.keys)))
	return expect(r, err, 1)
}

func expect(r *clientv3.GetResponse, err error, keys int) error {
	if err == nil && len(r.Kvs) != keys {
		err = fmt.Errorf("got %d keys, want %d", len(r.Kvs), keys)
	}
	return err
}

func (c *client) listPage(w int) error {
	from := key(0)
	if c.keys > 2*pageSize {
		from = key(rand.IntN(namespaces)) // the start of a namespace
		if from > key(namespaces/2) {
			from = key(0)
		}
	}
	r, err := c.conn(w).Get(c.ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(pageSize))
	return expect(r, err, pageSize)
}

func storedKey(i int) string { return fmt.Sprintf("/registry/stored/%09d", i) }

// listStored reads a page of the keys that make the store large, at a revision, as the API server does: from the page's first key to the
// end of them all.
func (c *client) listStored(w, first int) error {
	options := []clientv3.OpOption{clientv3.WithRange(clientv3.GetPrefixRangeEnd("/registry/stored/")), clientv3.WithLimit(pageSize)}
	r, err := c.conn(w).Get(c.ctx, storedKey(first), options...)
	if err == nil && r.Count != int64(c.stored-first) {
		err = fmt.Errorf("counted %d keys, want %d", r.Count, c.stored-first)
	}
	return expect(r, err, pageSize)
}

// listOn has each worker read on from page to page, all at one revision, and begin again after the last one. The continuation begins
// right behind the last key, as the API server's does.
func (c *client) listOn() (float64, error) {
	now, err := c.conn(0).Get(c.ctx, "/now")
	if err != nil {
		return 0, err
	}
	end := clientv3.GetPrefixRangeEnd("/registry/stored/")
	from := make([]string, c.workers)
	return c.repeat(func(w int) error {
		if from[w] == "" {
			from[w] = storedKey(w * pageSize)
		}
		r, err := c.conn(w).Get(c.ctx, from[w], clientv3.WithRange(end), clientv3.WithLimit(pageSize), clientv3.WithRev(now.Header.Revision))
		if err != nil {
			return err
		}
		from[w] = ""
		if r.More {
			from[w] = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
		}
		return nil
	})
}

func (c *client) listAll(w int) error {
	r, err := c.conn(w).Get(c.ctx, prefix, clientv3.WithPrefix())
	return expect(r, err, c.keys)
}

func (c *client) listNamespace(w int) error {
	r, err := c.conn(w).Get(c.ctx, fmt.Sprintf("%sns%02d/", prefix, rand.IntN(namespaces)), clientv3.WithPrefix())
	return expect(r, err, c.keys/namespaces)
}

func (c *client) count(w int) error {
	r, err := c.conn(w).Get(c.ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err == nil && r.Count != int64(c.keys) {
		err = fmt.Errorf("counted %d keys, want %d", r.Count, c.keys)
	}
	return err
}

// mixed is seven reads of a key, two updates and a list of a namespace in ten. Each worker updates keys of its own.
func (c *client) mixed(w int) error {
	switch n := rand.IntN(10); {
	case n < 7:
		return c.get(w)
	case n < 9:
		return c.write(rand.IntN(c.keys/c.workers)*c.workers + w)
	default:
		return c.listNamespace(w)
	}
}

// watchLatency is the 99th percentile, in ms, of the time from the start of an update until a watcher has its event, with many watchers
// and one update at a time.
func (c *client) watchLatency() (float64, error) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	const updates = 400
	arrived := make(chan time.Duration, watchers*updates)
	sent := make([]atomic.Int64, updates)
	began := time.Now()
	first, err := c.conn(0).Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	var group sync.WaitGroup
	for w := range watchers {
		events := c.conn(w).Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(first.Header.Revision+1))
		group.Go(func() {
			seen := 0
			for r := range events {
				now := time.Since(began)
				for range r.Events {
					arrived <- now - time.Duration(sent[seen].Load())
					seen++
				}
				if seen == updates {
					return
				}
			}
		})
	}
	for i := range updates {
		sent[i].Store(int64(time.Since(began)))
		if err := c.write(i % c.keys); err != nil {
			return 0, err
		}
	}
	group.Wait()
	close(arrived)
	var all []time.Duration
	for d := range arrived {
		all = append(all, d)
	}
	slices.Sort(all)
	return float64(all[len(all)*99/100].Microseconds()) / 1000, nil
}
