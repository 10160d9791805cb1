package robustness

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// check holds everything that was seen from outside against the log that the database holds in the end. It may leave files in dir.
func check(h *history, l *changelog, dir string) (errs []error) {
	h = withExpiries(h, l)
	for _, checker := range []func(*history, *changelog) []error{checkWrites, checkRealTime, checkReads, checkWatches, checkLeases} {
		errs = append(errs, checker(h, l)...)
	}
	return append(errs, checkLinearizable(h, l, dir)...)
}

// checkWrites checks that what was acknowledged is in the log once, at its revision, and that the log holds nothing else than that and
// writes of unknown outcome.
func checkWrites(h *history, l *changelog) (errs []error) {
	asked := map[identity][]*operation{}
	for i := range h.operations {
		o := &h.operations[i]
		if o.kind != txn {
			continue
		}
		for _, w := range o.writes {
			asked[o.identity(w)] = append(asked[o.identity(w)], o)
		}
	}
	done := map[identity]int64{}
	owners := map[int64]*operation{} // by revision
	for i := range l.changes {
		c := &l.changes[i]
		id := c.identity()
		if before, ok := done[id]; ok {
			errs = append(errs, fmt.Errorf("I1: %+v was done twice, at revisions %d and %d", id, before, c.revision))
		}
		done[id] = c.revision
		may := slices.DeleteFunc(slices.Clone(asked[id]), func(o *operation) bool {
			return o.outcome == refused || o.outcome == answered && !(o.succeeded && o.revision == c.revision)
		})
		if len(may) == 0 {
			errs = append(errs, fmt.Errorf("revision %d, %+v: nobody who asked for it may have got it: %v", c.revision, id, asked[id]))
		}
	}
	for i := range h.operations {
		o := &h.operations[i]
		if !o.acknowledged() {
			continue
		}
		if other := owners[o.revision]; other != nil {
			errs = append(errs, fmt.Errorf("I1: revision %d was given to two: %v, %v", o.revision, other, o))
		}
		owners[o.revision] = o
		for _, w := range o.writes {
			if at := done[o.identity(w)]; at != o.revision {
				errs = append(errs, fmt.Errorf("I9: acknowledged at revision %d, in the log at %d (0: missing): %v", o.revision, at, o))
			}
		}
	}
	return errs
}

// checkRealTime checks that a revision, once anybody has heard of it, is never gone back behind: not by the answers that one client gets
// nor by those of different clients through different servers. An acknowledged write comes after it.
func checkRealTime(h *history, _ *changelog) (errs []error) {
	type heard struct {
		at, revision int64
		from         string
	}
	var all []heard
	var calls []*operation
	for i := range h.operations {
		if o := &h.operations[i]; o.outcome == answered {
			all = append(all, heard{o.done, o.revision, o.String()})
			calls = append(calls, o)
		}
	}
	for _, w := range h.watches {
		for _, r := range w.responses {
			if n := len(r.events); n > 0 {
				all = append(all, heard{r.at, r.events[n-1].revision, w.name})
			}
		}
	}
	slices.SortFunc(all, func(a, b heard) int { return cmp.Compare(a.at, b.at) })
	slices.SortFunc(calls, func(a, b *operation) int { return cmp.Compare(a.call, b.call) })
	var newest heard
	next := 0
	for _, o := range calls {
		for ; next < len(all) && all[next].at < o.call; next++ {
			if all[next].revision > newest.revision {
				newest = all[next]
			}
		}
		if o.revision < newest.revision || o.acknowledged() && o.revision == newest.revision {
			errs = append(errs, fmt.Errorf("revisions go back: %v, after revision %d of %s", o, newest.revision, newest.from))
		}
	}
	return errs
}

// checkReads checks that every read, and what a lost comparison found, is the state of the log at its revision.
func checkReads(h *history, l *changelog) (errs []error) {
	for i := range h.operations {
		o := &h.operations[i]
		if o.outcome != answered {
			continue
		}
		if o.revision > l.last {
			errs = append(errs, fmt.Errorf("I2: above the last revision of the log, %d: %v", l.last, o))
		}
		if o.kind == list {
			errs = append(errs, checkList(o, l)...)
			continue
		}
		key := o.key
		if o.kind == txn {
			key = o.writes[0].key
		}
		now := l.at(key, o.revision)
		if o.looked && o.found != now {
			errs = append(errs, fmt.Errorf("I4: the answer is %+v, the log has %+v: %v", o.found, now, o))
		}
		if o.kind == txn && !o.succeeded && now.mod == o.expect {
			errs = append(errs, fmt.Errorf("the comparison was lost although it held: %v", o))
		}
	}
	return errs
}

func checkList(o *operation, l *changelog) (errs []error) {
	at, from := o.at, o.from
	if at == 0 {
		at = o.revision
	}
	if at > o.revision {
		errs = append(errs, fmt.Errorf("I2: read above the answer's revision: %v", o))
	}
	if from == "" {
		from = o.key
	}
	var want []keyVersion
	count := int64(0)
	for _, key := range l.keys {
		if v := l.at(key, at); v.mod != 0 && key >= from && strings.HasPrefix(key, o.key) {
			if count++; o.limit == 0 || count <= o.limit {
				want = append(want, keyVersion{key, v})
			}
		}
	}
	if !slices.Equal(o.listed, want) || o.count != count {
		errs = append(errs, fmt.Errorf("I4: %d keys of %d, the log has %d of %d: %v\nanswer %+v\nlog    %+v",
			len(o.listed), o.count, len(want), count, o, o.listed, want))
	}
	return errs
}

// checkWatches checks that each watcher got exactly the log of its range: once, in order, whole revisions, nothing at or below a revision
// that it was told to have reached (I8).
func checkWatches(h *history, l *changelog) (errs []error) {
	for i := range h.watches {
		if err := checkWatch(&h.watches[i], l); err != nil {
			errs = append(errs, fmt.Errorf("I8: %s: %w", h.watches[i].name, err))
		}
	}
	return errs
}

func checkWatch(w *watched, l *changelog) error {
	var want []change
	for _, c := range l.changes {
		if c.revision >= w.start && strings.HasPrefix(c.key, w.prefix) {
			want = append(want, c)
		}
	}
	var header, seen, reached int64 // the newest revisions: of a header, of an event, of progress
	for _, r := range w.responses {
		if r.revision < header {
			return fmt.Errorf("the revision of its header goes back from %d to %d", header, r.revision)
		}
		header = r.revision
		if len(r.events) == 0 {
			reached = r.revision
			continue
		}
		if first := r.events[0].revision; first == seen {
			return fmt.Errorf("revision %d is split", first)
		}
		for _, e := range r.events {
			switch {
			case len(want) == 0 || e != want[0]:
				return fmt.Errorf("got %+v, the log goes on with %+v", e, want[:min(len(want), 1)])
			case e.revision <= reached:
				return fmt.Errorf("an event at revision %d after progress at %d", e.revision, reached)
			case e.revision > header:
				return fmt.Errorf("an event at revision %d, its header is at %d", e.revision, header)
			}
			want = want[1:]
			seen = e.revision
		}
	}
	if len(want) > 0 && want[0].revision <= w.end {
		return fmt.Errorf("it ended before %+v", want[0])
	}
	if seen < w.end {
		return fmt.Errorf("it ended at revision %d, before %d", seen, w.end)
	}
	return nil
}
