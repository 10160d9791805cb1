package robustness

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// sample is a history without a fault, and the log that goes with it: two clients, a watcher, one write of unknown outcome that was done
// and one that was not.
func sample() (*history, []change) {
	v := func(value string, mod, create, n int64) version { return version{value, mod, create, n} }
	a2, a3, b5 := v("a2", 2, 2, 1), v("a3", 3, 2, 2), v("b5", 5, 5, 1)
	m := func(n int) (string, version) { return fmt.Sprintf("/p/m%d", n), v(fmt.Sprintf("m%d", n), 6, 6, 1) }
	m0, m0v := m(0)
	m1, m1v := m(1)
	changes := []change{
		{2, "/p/a", a2, version{}},
		{3, "/p/a", a3, a2},
		{4, "/p/a", version{}, a3},
		{5, "/p/b", b5, version{}},
		{6, m0, m0v, version{}},
		{6, m1, m1v, version{}},
	}
	put := func(client int, call, done, expect int64, key, value string, revision int64) operation {
		return operation{
			client: client, kind: txn, call: call, done: done, compare: true, expect: expect, writes: []write{{key, value}},
			revision: revision, succeeded: true,
		}
	}
	h := &history{operations: []operation{
		put(1, 10, 20, 0, "/p/a", "a2", 2),
		put(1, 30, 40, 2, "/p/a", "a3", 3),
		{client: 2, kind: get, call: 42, done: 44, key: "/p/a", revision: 3, looked: true, found: a3},
		{client: 2, kind: txn, call: 45, done: 46, compare: true, writes: []write{{"/p/a", "lost"}}, revision: 3, looked: true, found: a3},
		{client: 1, kind: txn, call: 50, done: 60, compare: true, expect: 3, writes: []write{{"/p/a", ""}}, outcome: unknown}, // done
		{client: 2, kind: txn, call: 52, done: 62, compare: true, writes: []write{{"/p/a", "never"}}, outcome: unknown},
		{client: 1, kind: txn, call: 53, done: 63, compare: true, expect: 2, writes: []write{{"/p/a", "refused"}}, outcome: refused},
		put(2, 70, 80, 0, "/p/b", "b5", 5),
		{client: 1, kind: get, call: 90, done: 100, key: "/p/a", revision: 5, looked: true},
		{client: 1, kind: txn, call: 110, done: 120, writes: []write{{m0, "m0"}, {m1, "m1"}}, revision: 6, succeeded: true},
		{client: 2, kind: list, call: 130, done: 140, key: "/p/", limit: 2, revision: 6, listed: []keyVersion{{"/p/b", b5}, {m0, m0v}}, count: 3},
		{client: 2, kind: list, call: 150, done: 160, key: "/p/", from: m0 + "\x00", at: 6, revision: 6, listed: []keyVersion{{m1, m1v}}, count: 1},
		{client: 2, kind: list, call: 170, done: 180, key: "/p/", at: 3, revision: 6, listed: []keyVersion{{"/p/a", a3}}, count: 1},
	}}
	h.watches = []watched{{
		name: "watcher", prefix: "/p/", start: 1, end: 6, responses: []response{
			{25, 2, slices.Clone(changes[:1])},
			{61, 4, slices.Clone(changes[1:3])},
			{64, 4, nil},
			{125, 6, slices.Clone(changes[3:])},
		},
	}}
	return h, changes
}

// TestSoundHistoryPasses: what is right is not reported.
func TestSoundHistoryPasses(t *testing.T) {
	h, changes := sample()
	for _, err := range check(h, newLog(changes), t.TempDir()) {
		t.Error(err)
	}
}

// TestCheckerFindsViolations doctors a sound history, and expects a report that says what was done to it.
func TestCheckerFindsViolations(t *testing.T) {
	type doctor func(h *history, changes *[]change)
	for name, c := range map[string]struct {
		doctor
		want string
	}{
		"lost acknowledged write": {func(h *history, changes *[]change) {
			*changes = slices.Delete(*changes, 3, 4)
			h.operations = slices.Delete(h.operations, 10, 13)
			h.watches = nil
		}, "I9: acknowledged at revision 5, in the log at 0"},
		"lost half of an acknowledged write": {func(_ *history, changes *[]change) {
			*changes = slices.Delete(*changes, 5, 6)
		}, "I9: acknowledged at revision 6, in the log at 0"},
		"acknowledged write at another revision": {func(h *history, _ *[]change) {
			h.operations[7].revision = 4
		}, "I9: acknowledged at revision 4, in the log at 5"},
		"refused write that was done": {func(h *history, _ *[]change) {
			h.operations[7].outcome = refused
		}, "nobody who asked for it may have got it"},
		"lost comparison that wrote": {func(h *history, _ *[]change) {
			h.operations[7].succeeded = false
		}, "nobody who asked for it may have got it"},
		"write nobody asked for": {func(_ *history, changes *[]change) {
			*changes = append(*changes, change{7, "/p/c", version{"?", 7, 7, 1}, version{}})
		}, "nobody who asked for it may have got it"},
		"unacknowledged write done twice": {func(h *history, changes *[]change) {
			h.operations[7].outcome = unknown
			*changes = append(*changes, change{7, "/p/b", version{"b5", 7, 5, 2}, (*changes)[3].after})
		}, "was done twice, at revisions 5 and 7"},
		"one revision for two": {func(h *history, _ *[]change) {
			h.operations[7].revision = 3
		}, "revision 3 was given to two"},
		"reordered revisions": {func(h *history, _ *[]change) {
			h.operations[7].call, h.operations[7].done = 5, 6 // before revision 2 was
		}, "revisions go back"},
		"header goes back": {func(h *history, _ *[]change) {
			h.operations[8].revision = 4
		}, "revisions go back"},
		"header behind an event": {func(h *history, _ *[]change) {
			h.watches[0].responses[3].at = 65
			h.operations[7].done = 120 // acknowledged later than seen
		}, "revisions go back"},
		"stale read": {func(h *history, _ *[]change) {
			o := &h.operations[8]
			o.found = h.operations[2].found
		}, `calls on key "/p/a" are not linearizable`},
		"stale read with its own revision": {func(h *history, _ *[]change) {
			o := &h.operations[8]
			o.found, o.revision = h.operations[2].found, 3
		}, `calls on key "/p/a" are not linearizable`},
		"dirty read": {func(h *history, _ *[]change) {
			h.operations[2].found.value = "never"
		}, "I4: the answer is"},
		"read of the future": {func(h *history, _ *[]change) {
			h.operations[12].at, h.operations[12].revision = 8, 6
		}, "I2: read above the answer's revision"},
		"revision above the log": {func(h *history, _ *[]change) {
			h.operations[12].revision = 9
		}, "I2: above the last revision"},
		"false conflict": {func(h *history, _ *[]change) {
			h.operations[3].expect = 3
		}, "the comparison was lost although it held"},
		"false conflict, linearizability": {func(h *history, _ *[]change) {
			h.operations[3].expect, h.operations[3].looked = 3, false
		}, `calls on key "/p/a" are not linearizable`},
		"two winners of one comparison": {func(h *history, _ *[]change) {
			h.operations[1].expect = 0
		}, `calls on key "/p/a" are not linearizable`},
		"key missing from a page": {func(h *history, _ *[]change) {
			h.operations[10].listed = h.operations[10].listed[1:]
		}, "I4: 1 keys of 3, the log has 2 of 3"},
		"page with another count": {func(h *history, _ *[]change) {
			h.operations[11].count = 2
		}, "I4: 1 keys of 2, the log has 1 of 1"},
		"list of another revision": {func(h *history, _ *[]change) {
			h.operations[12].at = 2
		}, "I4: 1 keys of 1, the log has 1 of 1"},
		"event missing": {func(h *history, _ *[]change) {
			h.watches[0].responses[1].events = h.watches[0].responses[1].events[1:]
		}, "I8: watcher: got"},
		"duplicate event": {func(h *history, _ *[]change) {
			w := &h.watches[0]
			w.responses = slices.Insert(w.responses, 1, w.responses[0])
		}, "I8: watcher: revision 2 is split"},
		"duplicate event later": {func(h *history, _ *[]change) {
			w := &h.watches[0]
			w.responses = slices.Insert(w.responses, 2, response{62, 4, w.responses[0].events})
		}, "I8: watcher: got"},
		"reordered events": {func(h *history, _ *[]change) {
			slices.Reverse(h.watches[0].responses[1].events)
		}, "I8: watcher: got"},
		"wrong previous version": {func(h *history, _ *[]change) {
			h.watches[0].responses[1].events[0].before = version{}
		}, "I8: watcher: got"},
		"split revision": {func(h *history, _ *[]change) {
			w := &h.watches[0]
			last := w.responses[3]
			w.responses = append(w.responses[:3], response{125, 6, last.events[:2]}, response{126, 6, last.events[2:]})
		}, "I8: watcher: revision 6 is split"},
		"event after progress": {func(h *history, _ *[]change) {
			h.watches[0].responses[2].revision = 5
		}, "I8: watcher: an event at revision 5 after progress at 5"},
		"header before its events": {func(h *history, _ *[]change) {
			h.watches[0].responses[3].revision = 5
		}, "I8: watcher: an event at revision 6, its header is at 5"},
		"header of a watch goes back": {func(h *history, _ *[]change) {
			h.watches[0].responses[0].revision = 9
		}, "I8: watcher: the revision of its header goes back from 9 to 4"},
		"watch that ends early": {func(h *history, _ *[]change) {
			h.watches[0].responses = h.watches[0].responses[:3]
		}, "I8: watcher: it ended before"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, changes := sample()
			c.doctor(h, &changes)
			var said []string
			for _, err := range check(h, newLog(changes), t.TempDir()) {
				said = append(said, err.Error())
			}
			if all := strings.Join(said, "\n"); !strings.Contains(all, c.want) {
				t.Errorf("the checker says\n%s\nwant: %s", all, c.want)
			}
		})
	}
}

// TestUnknownWritesMayHappenLate: a write whose caller gave up may be done much later, and is told from others by what it wrote.
func TestUnknownWritesMayHappenLate(t *testing.T) {
	h, changes := sample()
	h.operations[4].done = 54 // before the delete was done
	h.operations = slices.Insert(h.operations, 5, operation{
		client: 2, kind: get, call: 55, done: 56, key: "/p/a", revision: 3, looked: true, found: changes[1].after,
	})
	for _, err := range check(h, newLog(changes), t.TempDir()) {
		t.Error(err)
	}
}

// TestOneOfTwoUnknownDeletes: which of two clients deleted a version, when neither knows, is open.
func TestOneOfTwoUnknownDeletes(t *testing.T) {
	h, changes := sample()
	second := h.operations[4]
	second.client, second.call, second.done = 3, 65, 68 // it may have been late
	h.operations = append(h.operations, second)
	for _, err := range check(h, newLog(changes), t.TempDir()) {
		t.Error(err)
	}
}

// TestOrderOfRecordsDoesNotMatter: clients record when they can.
func TestOrderOfRecordsDoesNotMatter(t *testing.T) {
	h, changes := sample()
	rand.New(rand.NewPCG(*seedFlag, 0)).Shuffle(len(h.operations), func(i, j int) {
		h.operations[i], h.operations[j] = h.operations[j], h.operations[i]
	})
	for _, err := range check(h, newLog(changes), t.TempDir()) {
		t.Error(err)
	}
}
