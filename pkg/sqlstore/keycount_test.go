package sqlstore

import "testing"

// TestKeyCount counts keys while events come, before and after the count, and again after some were missed.
func TestKeyCount(t *testing.T) {
	h := newHub(&Store{opts: Options{}.withDefaults()}, Meta{CurrentRevision: 5})
	expect := func(what string, want int64) {
		t.Helper()
		h.mu.Lock()
		defer h.mu.Unlock()
		if got := h.liveKeys(); got != want {
			t.Errorf("%s: %d keys, want %d", what, got, want)
		}
	}
	event := func(revision Revision, version int64) *Event {
		return &Event{KV: KeyValue{Key: []byte("a"), ModRevision: revision, Version: version}}
	}
	counted := func(at Revision, keys int64) { h.counted(RangeRows{Meta: Meta{CurrentRevision: at}, Count: keys}) }
	const unknown = -1

	expect("nobody has counted", unknown)
	h.publish([]*Event{event(6, 1), event(7, 1), event(8, 2)}, 0)
	counted(6, 10)
	expect("one more was created since", 11)
	h.publish([]*Event{event(9, 0), event(9, 1), event(10, 0)}, 0)
	expect("deleted, created and deleted", 10)

	h.skip(20)
	expect("what happened until 19 is not known", unknown)
	counted(18, 10)
	expect("a count from before", unknown)
	counted(22, 7) // of a reader that is ahead
	expect("counted again", 7)
	h.publish([]*Event{event(20, 1), event(22, 1), event(23, 1)}, 0)
	expect("two were counted, one is new", 8)
}
