package sqlstore

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// separator ends the parts of a key in the hierarchies that users of etcd make.
var separator = []byte("/")

// hub hands the events of committed Txns to watchers. Events come from the committer's memory; events of other processes on
// the same database, and those that a failure hid, are read from history.
type hub struct {
	store *Store

	// mu guards everything below and all fields of watchers and watch streams.
	mu sync.Mutex
	// published: every event up to this revision is in the ring's past and was given to the synced watchers.
	published Revision
	compacted Revision // the newest compact revision that this process knows of
	ring      ring
	keys      keyCount
	synced    watcherIndex
	streams   map[*WatchStream]struct{} // that are open
	// wanting are the streams that could not report progress yet and are to be woken by the next publication.
	wanting map[*WatchStream]struct{}

	// observed is the newest revision that a reader has seen. In a shared database it may be ahead of published.
	observed atomic.Int64
	kick     chan struct{}
	count    chan struct{} // makes the count loop count the live keys
}

func newHub(s *Store, m Meta) *hub {
	published := m.CurrentRevision
	h := &hub{
		store: s, published: published, compacted: m.CompactRevision, ring: ring{first: published + 1, maxBytes: s.opts.RingBytes},
		synced: newWatcherIndex(), streams: map[*WatchStream]struct{}{}, wanting: map[*WatchStream]struct{}{}, kick: make(chan struct{}, 1),
		count: make(chan struct{}, 1),
	}
	h.observed.Store(int64(published))
	h.liveKeys() // so that they are known when somebody asks
	return h
}

// observe notes that a reader has seen a revision. In a shared database it may be another process's.
func (h *hub) observe(revision Revision) {
	if h.see(revision) && h.store.engine.Shared() {
		h.refresh()
	}
}

// missed tells the watchers of what lies below a key that was not there at a revision how far they are, if they do not know.
func (h *hub) missed(key []byte, revision Revision) {
	if !bytes.HasSuffix(key, separator) {
		key = append(slices.Clip(key), separator...)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.synced.match(key, func(w *Watcher) {
		if w.Progress && w.told < revision && w.From <= revision {
			w.progress = max(w.progress, revision)
			w.stream.enqueue(w)
		}
	})
}

// see raises observed and says whether it did.
func (h *hub) see(revision Revision) bool {
	for {
		seen := h.observed.Load()
		if int64(revision) <= seen {
			return false
		}
		if h.observed.CompareAndSwap(seen, int64(revision)) {
			return true
		}
	}
}

// refresh makes the refresh loop look for events of other processes.
func (h *hub) refresh() {
	select {
	case h.kick <- struct{}{}:
	default:
	}
}

// A read on a connection that the network lost takes all the time it is given. What is published until then counts.
const (
	// How long the committer may wait for what others wrote, and all writers with it. What is not read in time the refresh loop reads.
	catchUpTimeout = time.Second
	// How long the refresh loop reads before it begins anew, and watchers wait.
	refreshTimeout = 5 * time.Second
)

// committed publishes the events of a batch of ours that began at a revision and left the store at m.
func (h *hub) committed(began Revision, events []*Event, m Meta) {
	h.sawCompaction(m.CompactRevision)
	if h.reached() < began {
		// Another process wrote before us, or an earlier batch of ours turned out to be committed after all.
		ctx, cancel := context.WithTimeout(h.store.ctx, catchUpTimeout)
		err := h.publishHistory(ctx, began)
		cancel()
		if err != nil {
			h.refresh()
			return
		}
	}
	h.publish(events, 0)
}

func (h *hub) sawCompaction(revision Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.compacted = max(h.compacted, revision)
}

// publishHistory reads and publishes events until the given revision, or as far as there are, is reached. Several callers may do so at
// once, and the committer publishes meanwhile: what one has published the others skip, and none waits for another's read, which lasts
// when the network has lost its connection.
func (h *hub) publishHistory(ctx context.Context, until Revision) error {
	for more := true; more && h.reached() < until; {
		page, err := h.store.history(ctx, KeyRange{Key: fromKey, End: fromKey}, h.reached()+1)
		if compacted, ok := asCompacted(err); ok {
			h.skip(compacted)
			continue
		}
		if err != nil {
			return err
		}
		h.publish(page.events, page.reached)
		more = page.more
	}
	return nil
}

// skip jumps over history that is gone. Watchers that were synced become unsynced and learn of the compaction themselves.
func (h *hub) skip(compacted Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.published >= compacted-1 {
		return // somebody else has published what is left
	}
	for _, w := range h.synced.all() {
		h.unsync(w)
		w.next = max(w.next, h.published+1)
		w.queue = nil
		w.stream.enqueue(w)
	}
	h.published = compacted - 1
	h.ring.reset(compacted)
	h.keys = keyCount{}
}

func (h *hub) reached() Revision {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.published
}

// publish gives events, whole revisions in order, to the watchers; those published before are skipped. All revisions up to
// reached count as published afterwards. The events must follow what was published when the caller looked, or earlier ones.
func (h *hub) publish(events []*Event, reached Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.published
	for _, e := range events {
		if e.KV.ModRevision <= before {
			continue
		}
		h.published = e.KV.ModRevision
		h.ring.add(e)
		h.keys.add(e)
		h.synced.match(e.KV.Key, func(w *Watcher) { h.give(w, e) })
	}
	h.published = max(h.published, reached)
	h.see(h.published)
	for ws := range h.wanting {
		for w := range ws.watchers {
			if w.progress != 0 {
				ws.enqueue(w)
			}
		}
		ws.wake()
	}
	clear(h.wanting)
}

// give queues an event for a synced watcher; a watcher whose queue is too long or too old goes back to history.
func (h *hub) give(w *Watcher, e *Event) {
	if e.KV.ModRevision < w.next || !w.wants(e) {
		return
	}
	if len(w.queue) >= maxQueuedEvents || len(w.queue) > 0 && w.queue[0].KV.ModRevision < h.ring.first {
		w.next = w.queue[0].KV.ModRevision
		w.queue = nil
		h.unsync(w)
		w.stream.enqueue(w)
		return
	}
	w.queue = append(w.queue, e)
	if len(w.queue) == 1 {
		w.stream.enqueue(w)
	}
}

// replay syncs a watcher from the ring, if the ring reaches back to where the watcher stands.
func (h *hub) replay(w *Watcher) bool {
	if w.next < h.ring.first {
		return false
	}
	for _, e := range h.ring.from(w.next) {
		if w.Contains(e.KV.Key) && w.wants(e) {
			w.queue = append(w.queue, e.after(h.compacted))
		}
	}
	w.next = h.published + 1
	h.sync(w)
	return true
}

func (h *hub) sync(w *Watcher) {
	w.synced = true
	h.synced.add(w)
}

func (h *hub) unsync(w *Watcher) {
	w.synced = false
	h.synced.remove(w)
}

// refreshLoop publishes what other processes wrote, and what a failure kept the committer from publishing.
func (h *hub) refreshLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.kick:
		}
		reading, cancel := context.WithTimeout(ctx, refreshTimeout)
		err := h.publishHistory(reading, math.MaxInt64)
		cancel()
		if err != nil && !errors.Is(err, context.Canceled) {
			h.store.pause(ctx)
			h.refresh()
		}
	}
}

func asCompacted(err error) (Revision, bool) {
	var compacted *CompactedError
	if errors.As(err, &compacted) {
		return compacted.CompactRevision, true
	}
	return 0, false
}
