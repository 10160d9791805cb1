package storetest

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kubase/kubase/pkg/sqlstore"
)

var (
	seedFlag  = flag.Uint64("storetest.seed", 0, "seed of the random history; 0: another one each time")
	stepsFlag = flag.Int("storetest.steps", 600, "steps of the random history")
)

// RunRandom runs a random history on the store and on the model, and compares all answers and events.
func RunRandom(t *testing.T, fresh func(t *testing.T) Opener) {
	for name, options := range map[string]sqlstore.Options{"Ring": {}, "History": {RingBytes: 2000}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := *seedFlag
			if seed == 0 {
				seed = rand.Uint64()
			}
			t.Logf("repeat with -storetest.seed=%d -storetest.steps=%d", seed, *stepsFlag)
			m := newModel()
			h := &history{
				fixture: newFixture(t, fresh(t), options), m: m,
				generate: &generator{Rand: rand.New(rand.NewPCG(seed, 0)), m: m},
			}
			t.Cleanup(h.showTrace)
			h.watches = h.stream()
			for range *stepsFlag {
				h.step()
			}
			h.checkWatches()
			h.checkStates()
			h.finish()
		})
	}
}

// history is a random history under way.
type history struct {
	*fixture
	m        *model
	generate *generator
	watches  *stream
	trace    []string // the last steps
}

const (
	shownSteps  = 8
	mostWatches = 10
)

func (h *history) showTrace() {
	if h.Failed() {
		h.Logf("the last steps:\n%s", strings.Join(h.trace, "\n"))
	}
}

func (h *history) note(format string, args ...any) {
	h.trace = append(h.trace, fmt.Sprintf("%d: ", h.m.current())+fmt.Sprintf(format, args...))
	h.trace = h.trace[max(0, len(h.trace)-shownSteps):]
}

func (h *history) step() {
	g := h.generate
	switch n := g.IntN(100); {
	case n < 60:
		r := g.txn(0)
		h.note("%s", txnString(&r))
		got, gotErr := h.Txn(h.ctx, &r)
		want, wantErr := h.m.txn(&r)
		h.sameError(gotErr, wantErr)
		if wantErr == nil {
			equal(h.fixture, "answer", resultString(got), resultString(want))
		}
	case n < 78:
		r := g.rangeRequest()
		h.note("range %+v", r)
		got, gotErr := h.Range(h.ctx, &r)
		want, wantErr := h.m.rangeOf(&r)
		h.sameError(gotErr, wantErr)
		if wantErr == nil {
			equal(h.fixture, "answer", rangeString(got), rangeString(want))
		}
	case n < 82:
		h.compareRangeStream()
	case n < 84:
		revision := g.revision()
		h.note("compact %d", revision)
		call := h.Compact
		if g.one(2) {
			call = h.CompactPhysically
		}
		_, err := call(h.ctx, revision)
		h.sameError(err, h.m.compact(revision))
	case n < 87:
		id := sqlstore.LeaseID(1 + g.IntN(4))
		h.note("grant %d", id)
		_, err := h.LeaseGrant(h.ctx, id, 1000)
		if h.m.leases[id] {
			h.fails(err, sqlstore.ErrLeaseExists)
		} else {
			h.must(err)
		}
		h.m.leases[id] = true
	case n < 89:
		id := sqlstore.LeaseID(1 + g.IntN(4))
		h.note("revoke %d", id)
		_, err := h.LeaseRevoke(h.ctx, id)
		h.sameError(err, h.m.revoke(id))
	case n < 95:
		if len(h.watches.watches) < mostWatches {
			r := g.watch()
			h.note("watch %+v", r)
			h.watches.watch(r)
		}
	case n < 99:
		h.note("check the watches")
		h.checkWatches()
	default:
		h.note("reopen")
		h.checkWatches()
		h.watches.Close()
		h.reopen()
		h.watches = h.stream()
	}
}

func (h *history) sameError(got, want error) {
	h.Helper()
	if (got == nil) != (want == nil) || !errors.Is(got, want) {
		h.Fatalf("error is %v, want %v", got, want)
	}
}

func (h *history) compareRangeStream() {
	g := h.generate
	r := sqlstore.RangeRequest{KeyRange: g.keyRange(), Revision: g.revision(), Fields: sqlstore.Fields(g.IntN(3)), Limit: int64(g.IntN(6))}
	h.note("range stream %+v", r)
	want, err := h.m.rangeOf(&r)
	if err != nil {
		h.fails(h.RangeStream(h.ctx, &r, 1, func(*sqlstore.RangeResult) error { return nil }), err)
		return
	}
	got, _ := h.rangeStream(r, 1, nil)
	equal(h.fixture, "answer", rangeString(&got), rangeString(want))
}

// checkWatches takes what there is for each watcher and compares it with the model's log. Half of the watchers then end.
func (h *history) checkWatches() {
	h.Helper()
	for watcher, w := range h.watches.watches {
		w.progress = 0
		h.watches.RequestProgress(watcher)
		if watcher.From <= h.m.current() { // else there is none yet
			h.watches.until("progress", func() bool { return w.progress != 0 || w.compacted != 0 })
		}
		want := h.m.events(&watcher.WatchRequest)
		if w.compacted != 0 {
			if w.compacted > h.m.compacted || w.reached+1 >= w.compacted {
				h.Fatalf("a watcher at %d ended as compacted at %d; the compact revision is %d", w.reached, w.compacted, h.m.compacted)
			}
			want = want[:min(len(w.events), len(want))]
		}
		for i, e := range w.events {
			// At and below the compact revision the previous value may be gone (I5).
			if i < len(want) && e.Prev == nil && e.KV.ModRevision <= h.m.compacted {
				want[i] = &sqlstore.Event{Type: want[i].Type, KV: want[i].KV}
			}
		}
		same(h.fixture, fmt.Sprintf("I8: events for %+v", watcher.WatchRequest), describeEvents(w.events), describeEvents(want))
		if w.compacted != 0 || h.generate.one(2) {
			h.watches.Cancel(watcher)
			delete(h.watches.watches, watcher)
		}
	}
}

// checkStates reads everything at each revision that can be read.
func (h *history) checkStates() {
	h.Helper()
	for revision := max(h.m.compacted, 1); revision <= h.m.current(); revision++ {
		r := sqlstore.RangeRequest{KeyRange: everything, Revision: revision}
		want, err := h.m.rangeOf(&r)
		h.must(err)
		equal(h.fixture, "state", rangeString(h.rangeOf(r)), rangeString(want))
	}
}
