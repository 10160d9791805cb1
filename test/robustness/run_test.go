package robustness

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// system is what is tested: servers on one database.
type system struct {
	servers []*server
	open    func(context.Context) (sqlstore.Engine, error) // the database itself, when no server needs it any more
}

const (
	clientsPerServer = 6
	// All clients together make a call so often: often enough that batches have several requests, and not so often that checking
	// takes longer than running.
	callInterval = 1500 * time.Microsecond
	// A scenario that takes so long beyond its duration hangs.
	patience = 80 * time.Second
)

// run is one scenario under way.
type run struct {
	*testing.T
	*system
	*recorder
	rand *rand.Rand
}

// fault does harm while the clients work. It waits for what they achieve between, so that it hits them at work.
type fault func(context.Context, *run) error

// scenario lets clients work on a system while faults happen, and checks what they saw.
func scenario(t *testing.T, sys *system, harm fault) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), *durationFlag+patience)
	defer cancel()
	name := fnv.New64a()
	_, _ = name.Write([]byte(t.Name()))
	r := &run{T: t, system: sys, recorder: newRecorder(), rand: rand.New(rand.NewPCG(*seedFlag, name.Sum64()))}
	began := time.Now()
	clock := func() int64 { return int64(time.Since(began)) } // monotonic
	h := r.drive(ctx, clock, harm)
	for i, s := range sys.servers {
		if err := s.stop(); err != nil {
			t.Errorf("server %d: %v", i, err)
		}
	}
	if t.Failed() {
		return // a history that is not complete says nothing
	}
	verify(ctx, t, sys, h)
}

// verify checks the database and the history.
func verify(ctx context.Context, t *testing.T, sys *system, h *history) {
	t.Helper()
	engine, err := sys.open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := sqlstore.Verify(ctx, engine); err != nil {
		t.Error(err)
	}
	log, compacted, err := readLog(ctx, engine, &h.watches[0])
	if err != nil {
		t.Fatal(err)
	}
	if compacted == 0 {
		t.Error("nothing was compacted")
	}
	errs := check(h, log, t.ArtifactDir())
	const most = 10
	for _, err := range errs[:min(len(errs), most)] {
		t.Error(err)
	}
	if len(errs) > most {
		t.Errorf("and %d more", len(errs)-most)
	}
	outcomes := map[outcome]int{}
	for i := range h.operations {
		outcomes[h.operations[i].outcome]++
	}
	t.Logf("revision %d, compacted at %d; %d answers, %d refusals, %d unknown outcomes", log.last, compacted, outcomes[answered], outcomes[refused], outcomes[unknown])
}

// drive runs clients, watchers and the fault, and returns what was seen.
func (r *run) drive(ctx context.Context, clock func() int64, harm fault) *history {
	var working, watching sync.WaitGroup
	var watchers []*watcher
	var targets []chan<- int64
	ticker := time.NewTicker(callInterval)
	defer ticker.Stop()
	work, stop := context.WithCancel(ctx)
	defer stop()
	clients := 0
	newClient := func(server int) *client {
		clients++
		return &client{
			Client: r.dial(server), id: clients, server: server, clock: clock, recorder: r.recorder,
			rand: rand.New(rand.NewPCG(r.rand.Uint64(), 0)), known: map[string]int64{},
		}
	}
	watch := func(server int, prefix string, start int64, interrupted bool) {
		name := fmt.Sprintf("watcher of %s on server %d", prefix, server)
		var interruptions *rand.Rand
		if interrupted {
			interruptions = rand.New(rand.NewPCG(r.rand.Uint64(), 0))
		}
		w, target := newWatcher(r.dial(server), name, prefix, start, clock, interruptions)
		watchers, targets = append(watchers, w), append(targets, target)
		watching.Go(func() {
			if err := w.watch(ctx); err != nil {
				r.Error(err)
			}
		})
	}
	compacting := &compactor{rand: rand.New(rand.NewPCG(r.rand.Uint64(), 0))}
	for server := range r.servers {
		compacting.clients = append(compacting.clients, r.dial(server))
		for range clientsPerServer {
			c := newClient(server)
			working.Go(func() { c.work(work, ticker.C) })
		}
		watch(server, root, 1, true)
		watch(server, root, 1, false)
		for n := range resources {
			watch(server, resourcePrefix(n), 1, true)
		}
	}
	compacting.watchers = watchers
	working.Go(func() {
		if err := compacting.work(work); err != nil {
			r.Error(err)
		}
	})
	enough := time.NewTimer(*durationFlag)
	defer enough.Stop()
	if harm != nil {
		if err := harm(ctx, r); err != nil {
			r.Error(err)
		}
	}
	select {
	case <-enough.C:
	case <-ctx.Done():
	}
	stop()
	working.Wait()
	end := r.writeEnd(ctx, newClient(0))
	for server := range r.servers {
		watch(server, root, compacting.last+1, false) // everything comes from history
	}
	for _, target := range targets {
		target <- end
	}
	watching.Wait()
	h := &history{operations: r.operations, leases: r.leases}
	for _, w := range watchers {
		h.watches = append(h.watches, w.watched)
	}
	return h
}

// writeEnd writes something that every watcher sees, and returns its revision.
func (r *run) writeEnd(ctx context.Context, c *client) int64 {
	keys := []string{multiPrefix + "last"}
	for n := range resources {
		keys = append(keys, resourcePrefix(n)+"last")
	}
	for ctx.Err() == nil {
		if o := c.putAll(keys); o.acknowledged() {
			return o.revision
		}
	}
	r.Error("the last write did not succeed")
	return 1
}

func (r *run) dial(server int) *kubernetes.Client {
	c, err := dial(r.servers[server].endpoint())
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = c.Close() }) // its server is gone by then
	return c
}

// awaitWrites waits until every server has acknowledged n more writes.
func (r *run) awaitWrites(ctx context.Context, n int) error {
	var errs []error
	for i := range r.servers {
		errs = append(errs, r.await(ctx, n, count{i, true, answered}))
	}
	return errors.Join(errs...)
}

// awaitFailures waits until n more writes have failed.
func (r *run) awaitFailures(ctx context.Context, n int) error {
	var what []count
	for i := range r.servers {
		what = append(what, count{i, true, refused}, count{i, true, unknown})
	}
	return r.await(ctx, n, what...)
}

// anyServer chooses a server.
func (r *run) anyServer() *server { return r.servers[r.rand.IntN(len(r.servers))] }

// shortDir is a directory whose path leaves room for the name of a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// join makes one fault of several, one after the other.
func join(faults ...fault) fault {
	return func(ctx context.Context, r *run) error {
		var errs []error
		for _, f := range faults {
			errs = append(errs, f(ctx, r))
		}
		return errors.Join(errs...)
	}
}
