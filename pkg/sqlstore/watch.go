package sqlstore

import (
	"context"
	"errors"
	"slices"
)

// WatchRequest says what to watch.
type WatchRequest struct {
	KeyRange
	// From is the first revision to report; 0 means from now on. It may lie in the past, down to the compact revision, or in
	// the future.
	From Revision
	// NoPut and NoDelete leave events of one type out.
	NoPut, NoDelete bool
	// Progress lets the watcher hear of progress that nobody asked for: right after somebody has read the key above its range,
	// which is not there. So the API server learns the current revision ("/registry/pods"), and then it waits until its watch
	// ("/registry/pods/") has reached that.
	Progress bool
}

func (r *WatchRequest) wants(e *Event) bool {
	return !(r.NoPut && e.Type == EventPut) && !(r.NoDelete && e.Type == EventDelete)
}

// Watcher is one watch on a stream. Its fields are guarded by the hub's lock.
type Watcher struct {
	WatchRequest
	stream *WatchStream
	// next is the first revision that the watcher has not been given: of an unsynced watcher, where it goes on in history;
	// of a synced one, a bound below which it takes nothing from the hub.
	next     Revision
	synced   bool
	queue    []*Event // of a synced watcher: events to be taken, all of them still in the hub's ring when queued
	progress Revision // wanted once this revision is reached, 0: not wanted
	told     Revision // the newest revision that the consumer knows to be reached
	ordered  bool     // in the stream's order
	closed   bool
}

// WatchStream is a set of watchers with one consumer, which calls Next.
type WatchStream struct {
	store    *Store
	watchers map[*Watcher]struct{}
	order    []*Watcher // watchers that may have something for Next, in the order in which they got it
	progress Revision   // wanted for the whole stream once this revision is reached, 0: not wanted
	reached  Revision   // up to which history was read for some watcher; may be ahead of the hub
	closed   bool
	signal   chan struct{} // Next may find something
}

// WatchBatch is what Next found: events of one watcher, or progress of one watcher, or progress of the stream, or the end of a
// watcher whose next event is compacted.
type WatchBatch struct {
	Watcher  *Watcher // nil for progress of all watchers of the stream
	Events   []*Event // whole revisions; none for progress
	Revision Revision // that the watcher has reached
	// CompactRevision is not 0 when the watcher has ended because of compaction.
	CompactRevision Revision
}

const (
	// An unsynced watcher reads history in pages of this many events.
	historyPage = 500
	// A batch ends with the revision that takes it past this many bytes of keys and values.
	batchBytes = 1 << 20
	// A synced watcher with this many events in its queue becomes unsynced: its consumer is slow, and history can wait in
	// the database.
	maxQueuedEvents = 10_000
)

// NewWatchStream returns an empty stream. It ends with Close.
func (s *Store) NewWatchStream() *WatchStream {
	ws := &WatchStream{store: s, watchers: map[*Watcher]struct{}{}, signal: make(chan struct{}, 1)}
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.hub.streams[ws] = struct{}{}
	return ws
}

// Watch adds a watcher and returns it with the revision that the hub has reached.
func (ws *WatchStream) Watch(r WatchRequest) (*Watcher, Revision) {
	h := ws.store.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	w := &Watcher{WatchRequest: r, stream: ws, next: r.From, told: r.From - 1}
	if w.next <= 0 {
		w.next = h.published + 1
	}
	if ws.closed {
		w.closed = true
		return w, h.published
	}
	ws.watchers[w] = struct{}{}
	if w.next > h.published {
		h.sync(w)
	} else {
		ws.enqueue(w)
	}
	return w, h.published
}

// Cancel ends a watcher; Next returns nothing of it any more.
func (ws *WatchStream) Cancel(w *Watcher) {
	h := ws.store.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	ws.remove(w)
}

// Close ends all watchers; watchers added later never report anything.
func (ws *WatchStream) Close() {
	h := ws.store.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	ws.closed = true
	for w := range ws.watchers {
		ws.remove(w)
	}
	delete(h.wanting, ws)
	delete(h.streams, ws)
}

// Revision is the revision that the hub has reached.
func (ws *WatchStream) Revision() Revision {
	h := ws.store.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.published
}

// RequestProgress makes Next report, once w or with nil all watchers of the stream are synced and their events taken, the
// revision reached (I8): at least the newest one that any reader of this store has seen before the call. Without watchers, and while
// one begins in the future, it does nothing, as in etcd: whoever asked to hear of nothing before a revision must not hear that it is all there.
func (ws *WatchStream) RequestProgress(w *Watcher) {
	h := ws.store.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	reach := max(h.published, Revision(h.observed.Load()))
	if w == nil {
		for w := range ws.watchers {
			if reach < w.From {
				return
			}
		}
		if len(ws.watchers) > 0 {
			ws.progress = reach
			ws.wake()
		}
	} else if !w.closed && reach >= w.From {
		w.progress = reach
		ws.enqueue(w)
	}
}

// Next waits for something to report. It returns an error only when ctx ends.
func (ws *WatchStream) Next(ctx context.Context) (*WatchBatch, error) {
	for {
		batch, unsynced := ws.take()
		if batch != nil {
			return batch, nil
		}
		if unsynced != nil {
			if batch := ws.readHistory(ctx, unsynced); batch != nil {
				return batch, nil
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			continue
		}
		select {
		case <-ws.signal:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// take returns what is there, or an unsynced watcher whose history is to be read first.
func (ws *WatchStream) take() (*WatchBatch, *Watcher) {
	h := ws.store.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(ws.order) > 0 {
		w := ws.order[0]
		ws.order = ws.order[1:]
		w.ordered = false
		if w.closed {
			continue
		}
		if !w.synced && w.next < h.compacted {
			ws.remove(w)
			return &WatchBatch{Watcher: w, Revision: h.published, CompactRevision: h.compacted}, nil
		}
		if !w.synced && !h.replay(w) {
			return nil, w
		}
		if len(w.queue) > 0 {
			batch := &WatchBatch{Watcher: w, Events: w.dequeue(), Revision: h.published}
			w.told = batch.Events[len(batch.Events)-1].KV.ModRevision
			if len(w.queue) > 0 || w.progress != 0 {
				ws.enqueue(w)
			}
			return batch, nil
		}
		if ws.due(w.progress) {
			w.progress, w.told = 0, h.published
			return &WatchBatch{Watcher: w, Revision: h.published}, nil
		}
	}
	// All watchers are synced and their queues are empty.
	if ws.due(ws.progress) {
		ws.progress = 0
		return &WatchBatch{Revision: h.published}, nil
	}
	return nil, nil
}

// due says whether progress that was asked for at a revision can be reported: the hub is there, and is not behind the history
// that was read for a watcher of the stream. If it is not, the hub will wake the stream.
func (ws *WatchStream) due(progress Revision) bool {
	h := ws.store.hub
	if progress == 0 {
		return false
	}
	if h.published < max(progress, ws.reached) {
		h.wanting[ws] = struct{}{}
		return false
	}
	return true
}

// dequeue takes events from the queue up to a revision's end.
func (w *Watcher) dequeue() []*Event {
	bytes := 0
	for i, e := range w.queue {
		if bytes > batchBytes && e.KV.ModRevision != w.queue[i-1].KV.ModRevision {
			taken := w.queue[:i:i]
			w.queue = w.queue[i:]
			return taken
		}
		bytes += e.size()
	}
	taken := w.queue
	w.queue = nil
	return taken
}

// readHistory reads one page of history for an unsynced watcher.
func (ws *WatchStream) readHistory(ctx context.Context, w *Watcher) *WatchBatch {
	page, err := ws.store.history(ctx, w.KeyRange, w.next)
	if err != nil && !errors.Is(err, ErrCompacted) {
		// The database is away. The watcher stays where it is and goes on from there (I7).
		ws.store.pause(ctx)
	}
	h := ws.store.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.closed {
		return nil
	}
	ws.enqueue(w) // whatever comes next for it, take finds it
	if err != nil {
		return nil
	}
	w.next = page.reached + 1
	ws.reached = max(ws.reached, page.reached)
	if w.next > h.published {
		h.sync(w)
	}
	events := slices.DeleteFunc(page.events, func(e *Event) bool { return !w.wants(e) })
	if len(events) == 0 {
		return nil
	}
	return &WatchBatch{Watcher: w, Events: events, Revision: page.reached}
}

// enqueue notes that w may have something for Next.
func (ws *WatchStream) enqueue(w *Watcher) {
	if !w.ordered {
		w.ordered = true
		ws.order = append(ws.order, w)
	}
	ws.wake()
}

func (ws *WatchStream) wake() {
	select {
	case ws.signal <- struct{}{}:
	default:
	}
}

func (ws *WatchStream) remove(w *Watcher) {
	if w.closed {
		return
	}
	w.closed = true
	w.queue = nil
	delete(ws.watchers, w)
	ws.store.hub.unsync(w)
	ws.wake() // progress of the stream may have waited for w
}

// historyEvents is a page of history: all events of a range up to the revision reached, and whether there are more revisions.
type historyEvents struct {
	events  []*Event
	reached Revision
	more    bool
}

// history reads a page of events of a range from a revision on; a revision is never cut in two (I8).
func (s *Store) history(ctx context.Context, r KeyRange, from Revision) (historyEvents, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.ReadTimeout)
	defer cancel()
	q := EventsQuery{From: from, Limit: historyPage, LimitBytes: batchBytes}
	q.Start, q.End = r.Span()
	rows, err := s.events(ctx, q)
	if err != nil {
		return historyEvents{}, err
	}
	if !rows.More {
		return historyEvents{events: rows.Events, reached: max(rows.Meta.CurrentRevision, from-1)}, nil
	}
	// The page is full, so its last revision may go on behind it.
	last := rows.Events[len(rows.Events)-1].KV.ModRevision
	cut := slices.IndexFunc(rows.Events, func(e *Event) bool { return e.KV.ModRevision == last })
	if cut > 0 {
		return historyEvents{events: rows.Events[:cut], reached: last - 1, more: true}, nil
	}
	q.From, q.Through, q.Limit, q.LimitBytes = last, last, 0, 0
	if rows, err = s.events(ctx, q); err != nil {
		return historyEvents{}, err
	}
	return historyEvents{events: rows.Events, reached: last, more: true}, nil
}

// events reads history. Errors: ErrCompacted if it is gone at q.From.
func (s *Store) events(ctx context.Context, q EventsQuery) (EventRows, error) {
	rows, err := s.engine.Events(ctx, q)
	if err != nil {
		return EventRows{}, err
	}
	s.hub.sawCompaction(rows.Meta.CompactRevision)
	if q.From < rows.Meta.CompactRevision {
		return EventRows{}, &CompactedError{CompactRevision: rows.Meta.CompactRevision}
	}
	for i, e := range rows.Events {
		e.setPrev(e.Prev, rows.Events[:i])
		rows.Events[i] = e.after(rows.Meta.CompactRevision)
	}
	return rows, nil
}
