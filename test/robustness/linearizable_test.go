package robustness

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// keyState is one key in the sequential specification.
type keyState struct {
	version
	seen int64 // the newest revision of an answer so far: answers in linear order have revisions in order
}

// keyCall is what an operation does to one key.
type keyCall struct {
	*operation
	write    write // of a txn
	revision int64 // of the answer; of an unknown outcome, the revision that it has if it was done
	maybe    bool  // it may not have been done
}

// keyModel is the specification of one key.
var keyModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{keyState{}} },
	Step: func(state, input, _ any) []any {
		s, c := state.(keyState), input.(keyCall)
		next, done := s.answer(c)
		var states []any
		if done {
			states = append(states, next)
		}
		if c.maybe {
			states = append(states, s)
		}
		return states
	},
	DescribeOperation: func(input, _ any) string { return input.(keyCall).String() },
	DescribeState:     func(state any) string { return fmt.Sprintf("%+v", state) },
}).ToModel()

// answer says whether the key in this state gives this answer, and what it is then.
func (s keyState) answer(c keyCall) (keyState, bool) {
	if c.revision < s.seen {
		return s, false
	}
	if c.kind == get {
		return keyState{s.version, c.revision}, c.found == s.version
	}
	holds := !c.compare || s.mod == c.expect
	if c.kind == txn && c.outcome == answered && !c.succeeded {
		return keyState{s.version, c.revision}, !holds && (!c.looked || c.found == s.version)
	}
	if !holds || c.revision == s.seen {
		return s, false
	}
	return keyState{s.after(c.write, c.revision), c.revision}, true
}

// after is the version that follows when a write is done at a revision.
func (v version) after(w write, revision int64) version {
	if w.value == "" {
		return version{}
	}
	next := version{value: w.value, mod: revision, create: v.create, version: v.version + 1}
	if v.mod == 0 {
		next.create = revision
	}
	return next
}

// linearizableTimeout bounds the search for one key. A search that takes so long has proved nothing, which is a failure.
const linearizableTimeout = 20 * time.Second

// checkLinearizable checks each key's calls, which is enough: linearizability is local. Lists are checked against the log. A picture of
// what is not linearizable goes into dir.
func checkLinearizable(h *history, l *changelog, dir string) (errs []error) {
	for key, calls := range callsByKey(h, l) {
		result, info := porcupine.CheckOperationsVerbose(keyModel, calls, linearizableTimeout)
		if result == porcupine.Ok {
			continue
		}
		picture := filepath.Join(dir, strings.ReplaceAll(strings.TrimPrefix(key, "/"), "/", "-")+".html")
		errs = append(errs, fmt.Errorf("the %d calls on key %q are not linearizable: %s; -artifacts keeps %s",
			len(calls), key, result, picture), porcupine.VisualizePath(keyModel, info, picture))
	}
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

// callsByKey makes porcupine's operations. A write of unknown outcome that the log does not hold was never done and is left out. One that
// it holds was done at the log's revision, no later than when somebody first heard of that or a newer one; if several clients asked for
// the same deletion, it may have been any of them, unless one of them knows.
func callsByKey(h *history, l *changelog) map[string][]porcupine.Operation {
	revisions := newRevisionTimes(h)
	done := doneWrites(l)
	asked, known := map[identity]int{}, map[identity]bool{}
	for i := range h.operations {
		o := &h.operations[i]
		for _, w := range o.writes {
			switch {
			case o.outcome == unknown:
				asked[o.identity(w)]++
			case o.acknowledged():
				known[o.identity(w)] = true
			}
		}
	}
	calls := map[string][]porcupine.Operation{}
	add := func(key string, c keyCall, end int64) {
		calls[key] = append(calls[key], porcupine.Operation{ClientId: c.client, Input: c, Call: c.call, Return: end})
	}
	for i := range h.operations {
		o := &h.operations[i]
		if o.kind == get && o.outcome == answered {
			add(o.key, keyCall{operation: o, revision: o.revision}, o.done)
		}
		for _, w := range o.writes {
			id := o.identity(w)
			switch revision := done[id]; {
			case o.outcome == answered:
				add(w.key, keyCall{operation: o, write: w, revision: o.revision}, o.done)
			case o.outcome == unknown && revision != 0 && !known[id]:
				add(w.key, keyCall{operation: o, write: w, revision: revision, maybe: asked[id] > 1}, max(o.call, revisions.known(revision)))
			}
		}
	}
	return calls
}

// identity tells a write from all others: a put by its value, a delete by the version it replaces.
type identity struct {
	write
	replaces int64 // of a delete
}

func (o *operation) identity(w write) identity {
	if w.value == "" {
		return identity{w, o.expect}
	}
	return identity{w, 0}
}

func (c *change) identity() identity {
	if c.after.mod == 0 {
		return identity{write{c.key, ""}, c.before.mod}
	}
	return identity{write{c.key, c.after.value}, 0}
}

// doneWrites maps the writes in the log to their revisions.
func doneWrites(l *changelog) map[identity]int64 {
	done := make(map[identity]int64, len(l.changes))
	for i := range l.changes {
		done[l.changes[i].identity()] = l.changes[i].revision
	}
	return done
}

// revisionTimes knows when a revision was first heard of.
type revisionTimes struct {
	revisions []int64 // ascending
	times     []int64 // the earliest answer with that revision or a newer one
}

func newRevisionTimes(h *history) revisionTimes {
	var answers []*operation
	for i := range h.operations {
		if h.operations[i].outcome == answered {
			answers = append(answers, &h.operations[i])
		}
	}
	slices.SortFunc(answers, func(a, b *operation) int { return cmp.Compare(a.revision, b.revision) })
	r := revisionTimes{make([]int64, len(answers)), make([]int64, len(answers))}
	earliest := int64(math.MaxInt64)
	for i := len(answers) - 1; i >= 0; i-- {
		earliest = min(earliest, answers[i].done)
		r.revisions[i], r.times[i] = answers[i].revision, earliest
	}
	return r
}

func (r revisionTimes) known(revision int64) int64 {
	n, _ := slices.BinarySearch(r.revisions, revision)
	if n == len(r.times) {
		return math.MaxInt64
	}
	return r.times[n]
}
