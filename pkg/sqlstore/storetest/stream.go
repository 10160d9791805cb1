package storetest

import (
	"context"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// stream is a watch stream that checks what every stream must keep to (I8): events of a watcher come in revision order, a revision is
// never split across two batches, and nothing comes at or below a revision for which progress was reported.
type stream struct {
	f *fixture
	*sqlstore.WatchStream
	watches  map[*sqlstore.Watcher]*watch
	progress sqlstore.Revision // last reported for the whole stream
}

// watch is a watcher with what was received for it.
type watch struct {
	stream    *stream
	watcher   *sqlstore.Watcher
	events    []*sqlstore.Event
	reached   sqlstore.Revision // nothing more may come up to this revision
	progress  sqlstore.Revision // last reported for this watcher alone
	compacted sqlstore.Revision // not 0 when compaction ended the watcher
	batches   int
	cancelled bool
}

func (f *fixture) stream() *stream {
	s := &stream{f: f, WatchStream: f.NewWatchStream(), watches: map[*sqlstore.Watcher]*watch{}}
	f.Cleanup(s.Close)
	return s
}

func (s *stream) watch(r sqlstore.WatchRequest) *watch {
	watcher, _ := s.Watch(r)
	w := &watch{stream: s, watcher: watcher, reached: max(r.From-1, 0)}
	s.watches[watcher] = w
	return w
}

// step takes one batch.
func (s *stream) step(ctx context.Context) error {
	s.f.Helper()
	b, err := s.Next(ctx)
	if err != nil {
		return err
	}
	if b.Watcher == nil {
		if len(b.Events) > 0 || b.CompactRevision != 0 || b.Revision < s.progress {
			s.f.Fatalf("progress of the stream at %d after %d with %d events", b.Revision, s.progress, len(b.Events))
		}
		s.progress = b.Revision
		for _, w := range s.watches {
			w.reached = max(w.reached, b.Revision)
		}
		return nil
	}
	w := s.watches[b.Watcher]
	switch {
	case w == nil || w.cancelled || w.compacted != 0:
		s.f.Fatalf("a batch of a watcher that has ended: %+v", b)
	case b.CompactRevision != 0:
		w.compacted = b.CompactRevision
	case len(b.Events) == 0:
		w.progress = b.Revision
		w.reached = max(w.reached, b.Revision)
	default:
		w.batches++
		w.add(b)
	}
	return nil
}

func (w *watch) add(b *sqlstore.WatchBatch) {
	f := w.stream.f
	f.Helper()
	last := w.reached
	for i, e := range b.Events {
		if i == 0 && e.KV.ModRevision <= last || e.KV.ModRevision < last {
			f.Fatalf("I8: %s came although the watcher was at %d", eventString(e), last)
		}
		last = e.KV.ModRevision
	}
	if last > b.Revision {
		f.Fatalf("I8: a batch at revision %d holds an event of revision %d", b.Revision, last)
	}
	w.reached = last
	w.events = append(w.events, b.Events...)
}

// until takes batches until done says so.
func (s *stream) until(what string, done func() bool) {
	s.f.Helper()
	for !done() {
		if err := s.step(s.f.ctx); err != nil {
			s.f.Fatalf("waiting for %s: %v", what, err)
		}
	}
}

// wait takes batches until the watcher has n events.
func (w *watch) wait(n int) {
	w.stream.f.Helper()
	w.stream.until("events", func() bool { return len(w.events) >= n })
}

// expect waits for events and checks that they are these, and that no others have come up to the revision reached now.
func (w *watch) expect(want ...string) {
	f := w.stream.f
	f.Helper()
	w.settle()
	same(f, "events", describeEvents(w.events), want)
	w.events = nil
}

// settle takes everything there is for the watcher: progress is reported only behind it (I8).
func (w *watch) settle() {
	f := w.stream.f
	f.Helper()
	now := f.current()
	w.progress = 0
	w.stream.RequestProgress(w.watcher)
	w.stream.until("progress", func() bool { return w.progress != 0 })
	if w.progress < now {
		f.Fatalf("I8: progress was reported at %d, a reader had seen %d before", w.progress, now)
	}
}

// settle takes everything there is for all watchers.
func (s *stream) settle() {
	s.f.Helper()
	now := s.f.current()
	s.progress = 0
	s.RequestProgress(nil)
	s.until("progress", func() bool { return s.progress != 0 })
	if s.progress < now {
		s.f.Fatalf("I8: progress was reported at %d, a reader had seen %d before", s.progress, now)
	}
}
