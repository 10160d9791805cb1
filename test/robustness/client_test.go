package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

const (
	// A call that takes longer has an unknown outcome, and its client goes on.
	callTimeout = 4 * time.Second
	// Few keys, so that clients meet.
	resources, names = 2, 12
	pageSize         = 5
	root             = "/registry/"
	multiPrefix      = root + "multi/"
	multiKeys        = 3
)

func resourcePrefix(n int) string { return fmt.Sprintf("%sresource%d/", root, n) }

// dial connects as the API server does, but looks for a lost server more often.
func dial(endpoint string) (*kubernetes.Client, error) {
	quick := backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond}
	return kubernetes.New(clientv3.Config{
		Endpoints: []string{endpoint}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: time.Second})},
	})
}

// client makes one call after the other.
type client struct {
	*kubernetes.Client
	id, server int
	clock      func() int64
	recorder   *recorder
	rand       *rand.Rand
	written    int
	known      map[string]int64 // the mod revision that the client last heard of a key, as an informer's cache has it
	revisions  []int64          // some that it has seen, to read the past at
	leased     []string         // keys that it attached to leases
}

// work makes calls, one a tick, until ctx ends.
func (c *client) work(ctx context.Context, ticks <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		}
		c.step()
	}
}

func (c *client) step() {
	key := resourcePrefix(c.rand.IntN(resources)) + fmt.Sprintf("default/name%d", c.rand.IntN(names))
	switch n := c.rand.IntN(100); {
	case n < 12:
		c.put(key, 0, false) // a create does not ask what is there instead
	case n < 60:
		if c.known[key] == 0 {
			c.get(key)
		}
		if mod := c.known[key]; mod != 0 {
			c.put(key, mod, true)
		}
	case n < 68:
		if mod := c.known[key]; mod != 0 {
			c.delete(key, mod)
		}
	case n < 78:
		c.get(key)
	case n < 86:
		c.pages(resourcePrefix(c.rand.IntN(resources)))
	case n < 93:
		at := int64(0)
		if len(c.revisions) > 0 && c.rand.IntN(2) == 0 {
			at = c.revisions[c.rand.IntN(len(c.revisions))]
		}
		c.list(root, "", 0, at)
	case n < 97:
		c.putMany()
	case n < 98:
		c.lease()
	default:
		if len(c.leased) > 0 {
			c.get(c.leased[c.rand.IntN(len(c.leased))])
		}
	}
}

// call makes a call and records it. answer fills in what was answered.
func (c *client) call(o operation, call func(context.Context, *operation) error) operation {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	o.client = c.id
	o.call = c.clock()
	err := call(ctx, &o)
	o.done = c.clock()
	o.outcome = outcomeOf(err)
	if err == nil && (len(c.revisions) < 100 || c.rand.IntN(10) == 0) {
		c.revisions = append(c.revisions, o.revision)
	}
	if o.kind == txn || err == nil { // a read that failed says nothing
		c.recorder.add(c.server, o)
	}
	return o
}

// outcomeOf says what an error promises. All but two leave it open whether the call was done.
func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return answered
	case errors.Is(err, rpctypes.ErrNoLeader), errors.Is(err, rpctypes.ErrNoSpace):
		return refused
	}
	return unknown
}

func (c *client) value() string {
	c.written++
	return fmt.Sprintf("value of client %d, write %d", c.id, c.written)
}

func (c *client) put(key string, expect int64, look bool) operation {
	value := c.value()
	return c.call(operation{kind: txn, compare: true, expect: expect, writes: []write{{key, value}}},
		func(ctx context.Context, o *operation) error {
			res, err := c.OptimisticPut(ctx, key, []byte(value), expect, kubernetes.PutOptions{GetOnFailure: look})
			c.answer(o, res.Revision, res.Succeeded, look && !res.Succeeded, key, res.KV, err)
			if o.succeeded {
				c.known[key] = o.revision
			}
			return err
		})
}

func (c *client) delete(key string, expect int64) {
	c.call(operation{kind: txn, compare: true, expect: expect, writes: []write{{key, ""}}},
		func(ctx context.Context, o *operation) error {
			res, err := c.OptimisticDelete(ctx, key, expect, kubernetes.DeleteOptions{GetOnFailure: true})
			delete(c.known, key)
			c.answer(o, res.Revision, res.Succeeded, !res.Succeeded, key, res.KV, err)
			return err
		})
}

func (c *client) get(key string) {
	c.call(operation{kind: get, key: key}, func(ctx context.Context, o *operation) error {
		res, err := c.Client.Kubernetes.Get(ctx, key, kubernetes.GetOptions{})
		c.answer(o, res.Revision, false, true, key, res.KV, err)
		return err
	})
}

// answer notes the answer about one key.
func (c *client) answer(o *operation, revision int64, succeeded, looked bool, key string, kv *mvccpb.KeyValue, err error) {
	if err != nil {
		return
	}
	o.revision, o.succeeded, o.looked = revision, succeeded, looked
	if looked {
		o.found = versionOf(kv)
		c.known[key] = o.found.mod
	}
}

// pages reads a prefix in pages, all at the revision of the first.
func (c *client) pages(prefix string) {
	from, at := "", int64(0)
	for {
		page := c.list(prefix, from, pageSize, at)
		if page.outcome != answered || page.count <= int64(len(page.listed)) || len(page.listed) == 0 {
			return
		}
		if at == 0 {
			at = page.revision
		}
		from = page.listed[len(page.listed)-1].key + "\x00"
	}
}

func (c *client) list(prefix, from string, limit, at int64) operation {
	return c.call(operation{kind: list, key: prefix, from: from, limit: limit, at: at},
		func(ctx context.Context, o *operation) error {
			res, err := c.List(ctx, prefix, kubernetes.ListOptions{Revision: at, Limit: limit, Continue: from})
			if err != nil {
				return err
			}
			o.revision, o.count = res.Revision, res.Count
			for _, kv := range res.Kvs {
				o.listed = append(o.listed, keyVersion{string(kv.Key), versionOf(kv)})
			}
			return nil
		})
}

// putMany changes some keys in one revision. Kubernetes does so when a lease ends.
func (c *client) putMany() {
	var keys []string
	for i := range multiKeys {
		keys = append(keys, fmt.Sprintf("%s%d", multiPrefix, i))
	}
	c.putAll(keys)
}

func (c *client) putAll(keys []string, options ...clientv3.OpOption) operation {
	value := c.value()
	var ops []clientv3.Op
	o := operation{kind: txn}
	for i, key := range keys {
		w := write{key, fmt.Sprintf("%s, key %d", value, i)}
		o.writes = append(o.writes, w)
		ops = append(ops, clientv3.OpPut(w.key, w.value, options...))
	}
	return c.call(o, func(ctx context.Context, o *operation) error {
		res, err := c.Client.Client.Txn(ctx).Then(ops...).Commit()
		if err == nil {
			o.revision, o.succeeded = res.Header.Revision, res.Succeeded
		}
		return err
	})
}

func versionOf(kv *mvccpb.KeyValue) version {
	if kv == nil {
		return version{}
	}
	return version{value: string(kv.Value), mod: kv.ModRevision, create: kv.CreateRevision, version: kv.Version}
}
