package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/leasing"
	"go.etcd.io/etcd/client/v3/mirror"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.etcd.io/etcd/client/v3/ordering"
)

// TestClientHelpers uses what etcd's client has on top of the API.
func TestClientHelpers(t *testing.T) {
	for _, server := range servers {
		t.Run(server.name, func(t *testing.T) {
			kubernetes := server.start(t)
			t.Cleanup(func() { _ = kubernetes.Close() }) // the server may be gone already
			for _, c := range []struct {
				name string
				test func(*testing.T, *helperTest)
			}{
				{"STM", testSTM},
				{"Mutex", testMutex},
				{"Election", testElection},
				{"SessionExpires", testSessionExpires},
				{"Namespace", testNamespace},
				{"Mirror", testMirror},
				{"Ordering", testOrdering},
				{"Leasing", testLeasing},
			} {
				t.Run(c.name, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), operationTimeout)
					defer cancel()
					c.test(t, &helperTest{ctx: ctx, client: kubernetes.Client, prefix: c.name + "/"})
				})
			}
		})
	}
}

type helperTest struct {
	ctx    context.Context
	client *clientv3.Client
	prefix string // of all keys of the test
}

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// content lists keys and values below a prefix, as kv sees them.
func (h *helperTest) content(t *testing.T, kv clientv3.KV, prefix string) []string {
	t.Helper()
	got := must[*clientv3.GetResponse](t)(kv.Get(h.ctx, prefix, clientv3.WithPrefix()))
	content := []string{}
	for _, kv := range got.Kvs {
		content = append(content, string(kv.Key)+"="+string(kv.Value))
	}
	return content
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// testSTM moves money between accounts in concurrent software transactions: none is made or lost.
func testSTM(t *testing.T, h *helperTest) {
	const accounts, workers, transfers = 5, 4, 15
	account := func(i int) string { return fmt.Sprintf("%s%d", h.prefix, i) }
	for i := range accounts {
		must[*clientv3.PutResponse](t)(h.client.Put(h.ctx, account(i), "100"))
	}
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for n := range transfers {
				from, to := account((w+n)%accounts), account((w*2+n*3+1)%accounts)
				if from == to {
					continue
				}
				_, err := concurrency.NewSTM(h.client, func(stm concurrency.STM) error {
					a, errA := strconv.Atoi(stm.Get(from))
					b, errB := strconv.Atoi(stm.Get(to))
					stm.Put(from, strconv.Itoa(a-1))
					stm.Put(to, strconv.Itoa(b+1))
					return errors.Join(errA, errB)
				}, concurrency.WithAbortContext(h.ctx), concurrency.WithIsolation([]concurrency.Isolation{
					concurrency.SerializableSnapshot, concurrency.Serializable, concurrency.RepeatableReads,
				}[n%3]))
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	sum := 0
	for i := range accounts {
		got := must[*clientv3.GetResponse](t)(h.client.Get(h.ctx, account(i)))
		n, err := strconv.Atoi(string(got.Kvs[0].Value))
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	if sum != accounts*100 {
		t.Errorf("all accounts have %d, want %d", sum, accounts*100)
	}
}

func (h *helperTest) session(t *testing.T, options ...concurrency.SessionOption) *concurrency.Session {
	t.Helper()
	s := must[*concurrency.Session](t)(concurrency.NewSession(h.client, options...))
	t.Cleanup(func() { _ = s.Close() }) // some tests end it themselves
	return s
}

// testMutex has sessions count under a lock that a mutex keeps.
func testMutex(t *testing.T, h *helperTest) {
	const workers, rounds = 4, 5
	must[*clientv3.PutResponse](t)(h.client.Put(h.ctx, h.prefix+"counter", "0"))
	var group sync.WaitGroup
	for range workers {
		mutex := concurrency.NewMutex(h.session(t), h.prefix+"lock")
		group.Go(func() {
			for range rounds {
				if err := mutex.Lock(h.ctx); err != nil {
					t.Error(err)
					return
				}
				if err := errors.Join(h.count(mutex), mutex.Unlock(h.ctx)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	expect(t, "the counter", h.content(t, h.client, h.prefix), fmt.Sprintf("%scounter=%d", h.prefix, workers*rounds))

	holder, other := concurrency.NewMutex(h.session(t), h.prefix+"try"), concurrency.NewMutex(h.session(t), h.prefix+"try")
	if err := holder.TryLock(h.ctx); err != nil {
		t.Error(err)
	}
	if err := other.TryLock(h.ctx); !errors.Is(err, concurrency.ErrLocked) {
		t.Errorf("a lock that is held can be taken: %v", err)
	}
}

// count adds 1 to the counter in two steps, between which nobody else may.
func (h *helperTest) count(mutex *concurrency.Mutex) error {
	got, err := h.client.Get(h.ctx, h.prefix+"counter")
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(string(got.Kvs[0].Value))
	if err != nil {
		return err
	}
	done, err := h.client.Txn(h.ctx).If(mutex.IsOwner()).Then(clientv3.OpPut(h.prefix+"counter", strconv.Itoa(n+1))).Commit()
	if err == nil && !done.Succeeded {
		err = errors.New("the mutex has another owner")
	}
	return err
}

// testElection has a second candidate win when the first resigns, and a third when the second's session ends.
func testElection(t *testing.T, h *helperTest) {
	var candidates []*concurrency.Election
	var sessions []*concurrency.Session
	for range 3 {
		sessions = append(sessions, h.session(t))
		candidates = append(candidates, concurrency.NewElection(sessions[len(sessions)-1], h.prefix+"e"))
	}
	observed := concurrency.NewElection(h.session(t), h.prefix+"e").Observe(h.ctx)
	if _, err := candidates[0].Leader(h.ctx); !errors.Is(err, concurrency.ErrElectionNoLeader) {
		t.Errorf("before the election: %v", err)
	}
	wins := make(chan string)
	campaign := func(i int) {
		name := strconv.Itoa(i)
		if err := candidates[i].Campaign(h.ctx, name); err != nil {
			t.Error(err)
		}
		wins <- name
	}
	leader := func(want string) {
		t.Helper()
		if won := <-wins; won != want {
			t.Errorf("%s won, want %s", won, want)
		}
		if got := <-observed; string(got.Kvs[0].Value) != want {
			t.Errorf("observed %s, want %s", got.Kvs[0].Value, want)
		}
	}
	go campaign(0)
	leader("0")
	go campaign(1)
	h.waitForKeys(t, h.prefix+"e/", 2)
	go campaign(2)
	h.waitForKeys(t, h.prefix+"e/", 3)
	if err := candidates[0].Proclaim(h.ctx, "0 again"); err != nil {
		t.Error(err)
	}
	if got := <-observed; string(got.Kvs[0].Value) != "0 again" {
		t.Errorf("observed %s, want what was proclaimed", got.Kvs[0].Value)
	}
	if err := candidates[0].Resign(h.ctx); err != nil {
		t.Error(err)
	}
	leader("1")
	if err := sessions[1].Close(); err != nil {
		t.Error(err)
	}
	leader("2")
}

// waitForKeys waits until there are n keys below a prefix.
func (h *helperTest) waitForKeys(t *testing.T, prefix string, n int64) {
	t.Helper()
	got := must[*clientv3.GetResponse](t)(h.client.Get(h.ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly()))
	count := got.Count
	if count == n {
		return
	}
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	for answer := range h.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(got.Header.Revision+1)) {
		for _, e := range answer.Events {
			if e.Type == clientv3.EventTypeDelete {
				count--
			} else if e.IsCreate() {
				count++
			}
		}
		if count == n {
			return
		}
	}
}

// testSessionExpires lets a session's lease run out: its keys go and waiters go on.
func testSessionExpires(t *testing.T, h *helperTest) {
	dying := h.session(t, concurrency.WithTTL(2))
	dead := concurrency.NewMutex(dying, h.prefix+"lock")
	if err := dead.Lock(h.ctx); err != nil {
		t.Fatal(err)
	}
	dying.Orphan() // nobody renews the lease any more
	next := concurrency.NewMutex(h.session(t), h.prefix+"lock")
	if err := next.Lock(h.ctx); err != nil {
		t.Fatal(err)
	}
	got := must[*clientv3.GetResponse](t)(h.client.Get(h.ctx, dead.Key()))
	ttl := must[*clientv3.LeaseTimeToLiveResponse](t)(h.client.TimeToLive(h.ctx, dying.Lease()))
	if len(got.Kvs) != 0 || ttl.TTL != -1 {
		t.Errorf("the key and lease of the dead session: %v, %v", got.Kvs, ttl)
	}
}

// testNamespace shows a client only what is below a prefix.
func testNamespace(t *testing.T, h *helperTest) {
	kv := namespace.NewKV(h.client.KV, h.prefix+"in/")
	watcher := namespace.NewWatcher(h.client.Watcher, h.prefix+"in/")
	lease := namespace.NewLease(h.client.Lease, h.prefix+"in/")
	put := must[*clientv3.PutResponse](t)
	put(h.client.Put(h.ctx, h.prefix+"ia", "before"))
	put(h.client.Put(h.ctx, h.prefix+"io", "after"))
	granted := must[*clientv3.LeaseGrantResponse](t)(lease.Grant(h.ctx, 100))
	first := put(kv.Put(h.ctx, "a", "1", clientv3.WithLease(granted.ID)))
	put(kv.Put(h.ctx, "b", "2"))
	txn := must[*clientv3.TxnResponse](t)(kv.Txn(h.ctx).If(clientv3.Compare(clientv3.Value("a"), "=", "1")).
		Then(clientv3.OpPut("c", "3"), clientv3.OpGet("", clientv3.WithFromKey()), clientv3.OpDelete("b", clientv3.WithPrevKV())).Commit())
	expect(t, "the Txn sees", h.keys(txn.Responses[1].GetResponseRange().Kvs), "a", "b", "c")
	expect(t, "inside", h.content(t, kv, ""), "a=1", "c=3")
	expect(t, "from outside", h.content(t, h.client, h.prefix+"in/"), h.prefix+"in/a=1", h.prefix+"in/c=3")
	ttl := must[*clientv3.LeaseTimeToLiveResponse](t)(lease.TimeToLive(h.ctx, granted.ID, clientv3.WithAttachedKeys()))
	if len(ttl.Keys) != 1 || string(ttl.Keys[0]) != "a" {
		t.Errorf("the keys of the lease are %q", ttl.Keys)
	}
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	var events []string
	for answer := range watcher.Watch(ctx, "", clientv3.WithFromKey(), clientv3.WithRev(first.Header.Revision)) {
		for _, e := range answer.Events {
			events = append(events, fmt.Sprintf("%s %s", e.Type, e.Kv.Key))
		}
		if len(events) >= 4 {
			break
		}
	}
	expect(t, "events", events, "PUT a", "PUT b", "PUT c", "DELETE b")
	if deleted := must[*clientv3.DeleteResponse](t)(kv.Delete(h.ctx, "", clientv3.WithFromKey())); deleted.Deleted != 2 {
		t.Errorf("deleted %d keys, want 2", deleted.Deleted)
	}
	expect(t, "what is left", h.content(t, h.client, h.prefix), h.prefix+"ia=before", h.prefix+"io=after")
}

func (h *helperTest) keys(kvs []*mvccpb.KeyValue) []string {
	keys := make([]string, len(kvs))
	for i, kv := range kvs {
		keys[i] = string(kv.Key)
	}
	return keys
}

// testMirror copies more keys than fit in one answer of the mirror, then what changes.
func testMirror(t *testing.T, h *helperTest) {
	const keys = 1100
	key := func(i int) string { return fmt.Sprintf("%s%04d", h.prefix, i) }
	for from := 0; from < keys; from += 100 {
		var ops []clientv3.Op
		for i := from; i < from+100; i++ {
			ops = append(ops, clientv3.OpPut(key(i), strconv.Itoa(i)))
		}
		must[*clientv3.TxnResponse](t)(h.client.Txn(h.ctx).Then(ops...).Commit())
	}
	syncer := mirror.NewSyncer(h.client, h.prefix, 0)
	answers, errs := syncer.SyncBase(h.ctx)
	copied := map[string]string{}
	n := 0
	for answer := range answers {
		n++
		for _, kv := range answer.Kvs {
			copied[string(kv.Key)] = string(kv.Value)
		}
	}
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
	if n != 2 || len(copied) != keys {
		t.Errorf("copied %d keys in %d answers, want %d in 2", len(copied), n, keys)
	}
	must[*clientv3.PutResponse](t)(h.client.Put(h.ctx, key(1), "new"))
	last := must[*clientv3.DeleteResponse](t)(h.client.Delete(h.ctx, key(10), clientv3.WithRange(key(20)))).Header.Revision
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	for answer := range syncer.SyncUpdates(ctx) {
		for _, e := range answer.Events {
			if e.Type == clientv3.EventTypeDelete {
				delete(copied, string(e.Kv.Key))
			} else {
				copied[string(e.Kv.Key)] = string(e.Kv.Value)
			}
		}
		if answer.Header.Revision >= last {
			break
		}
	}
	if _, there := copied[key(15)]; there || copied[key(1)] != "new" || len(copied) != keys-10 {
		t.Errorf("after the changes the copy has %d keys, and %q", len(copied), copied[key(1)])
	}
}

// testOrdering reads through a client that refuses answers older than those it has seen.
func testOrdering(t *testing.T, h *helperTest) {
	kv := ordering.NewKV(h.client.KV, func(_ clientv3.Op, r clientv3.OpResponse, revision int64) error {
		return fmt.Errorf("an answer at a revision below %d: %v", revision, r)
	})
	for i := range 20 {
		must[*clientv3.PutResponse](t)(kv.Put(h.ctx, h.prefix+"a", strconv.Itoa(i)))
		got := must[*clientv3.GetResponse](t)(kv.Get(h.ctx, h.prefix+"a", clientv3.WithSerializable()))
		if string(got.Kvs[0].Value) != strconv.Itoa(i) {
			t.Errorf("read %s after writing %d", got.Kvs[0].Value, i)
		}
		must[*clientv3.TxnResponse](t)(kv.Txn(h.ctx).Then(clientv3.OpGet(h.prefix + "a")).Commit())
	}
}

// testLeasing has two clients that keep what they read until the other one writes.
func testLeasing(t *testing.T, h *helperTest) {
	one, closeOne, err := leasing.NewKV(h.client, h.prefix+"leases/")
	if err != nil {
		t.Fatal(err)
	}
	defer closeOne()
	two, closeTwo, err := leasing.NewKV(h.client, h.prefix+"leases/")
	if err != nil {
		t.Fatal(err)
	}
	defer closeTwo()
	key := h.prefix + "a"
	must[*clientv3.PutResponse](t)(one.Put(h.ctx, key, "1"))
	for _, want := range []string{"1", "2", "3"} {
		must[*clientv3.PutResponse](t)(two.Put(h.ctx, key, want))
		for _, kv := range []clientv3.KV{one, one, two} {
			if got := must[*clientv3.GetResponse](t)(kv.Get(h.ctx, key)); string(got.Kvs[0].Value) != want {
				t.Errorf("read %s, want %s", got.Kvs[0].Value, want)
			}
		}
	}
	must[*clientv3.DeleteResponse](t)(two.Delete(h.ctx, key))
	if got := must[*clientv3.GetResponse](t)(one.Get(h.ctx, key)); len(got.Kvs) != 0 {
		t.Errorf("read %v, want nothing", got.Kvs)
	}
}
