package robustness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// watcher watches a prefix as the API server's cache does: with the versions before, and after each interruption from the revision after
// the last one it saw.
type watcher struct {
	watched
	client *kubernetes.Client
	clock  func() int64
	rand   *rand.Rand   // nil: it never interrupts itself
	seen   atomic.Int64 // the last revision it saw
	target <-chan int64 // gets the revision at which it may end
}

func newWatcher(c *kubernetes.Client, name, prefix string, start int64, clock func() int64, r *rand.Rand) (*watcher, chan<- int64) {
	target := make(chan int64, 1)
	return &watcher{
		watched: watched{name: name, prefix: prefix, start: start}, client: c, clock: clock, rand: r, target: target,
	}, target
}

// Some responses come between two interruptions; some bring a request for progress.
const (
	leastResponses, moreResponses = 20, 200
	responsesPerProgress          = 16
)

// watch returns when it has seen its target.
func (w *watcher) watch(ctx context.Context) error {
	w.seen.Store(w.start - 1)
	for {
		ended, err := w.connect(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		if ended {
			return nil
		}
	}
}

// connect watches until the target is seen, or the watch ends or is to be interrupted.
func (w *watcher) connect(ctx context.Context) (ended bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	left := -1
	if w.rand != nil {
		left = leastResponses + w.rand.IntN(moreResponses)
	}
	responses := w.client.Watch(clientv3.WithRequireLeader(ctx), w.prefix, clientv3.WithRev(w.seen.Load()+1), clientv3.WithPrefix(), clientv3.WithPrevKV())
	for {
		if w.end != 0 && w.seen.Load() >= w.end {
			return true, nil
		}
		if left == 0 {
			return false, nil
		}
		select {
		case w.end = <-w.target:
			left = -1 // it is about to end anyway
		case res, ok := <-responses:
			switch {
			case ctx.Err() != nil:
				return false, fmt.Errorf("revision %d was not seen, only %d: %w", w.end, w.seen.Load(), ctx.Err())
			case !ok:
				return false, nil
			case res.CompactRevision != 0:
				return false, fmt.Errorf("compacted at %d", res.CompactRevision)
			case res.Err() != nil:
				return false, nil
			}
			w.note(&res)
			left--
			if w.rand != nil && w.rand.IntN(responsesPerProgress) == 0 {
				_ = w.client.RequestProgress(clientv3.WithRequireLeader(ctx)) // it fails when the server is away
			}
		}
	}
}

func (w *watcher) note(res *clientv3.WatchResponse) {
	r := response{at: w.clock(), revision: res.Header.Revision}
	for _, e := range res.Events {
		c := change{revision: e.Kv.ModRevision, key: string(e.Kv.Key), before: versionOf(e.PrevKv)}
		if e.Type == mvccpb.PUT {
			c.after = versionOf(e.Kv)
		}
		r.events = append(r.events, c)
		w.seen.Store(max(w.seen.Load(), c.revision))
	}
	w.responses = append(w.responses, r)
}
