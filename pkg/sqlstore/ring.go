package sqlstore

import "sort"

// ring holds the newest events, bounded by bytes, so that watchers that are a little behind need no database.
type ring struct {
	events   []*Event
	first    Revision // all events from this revision on are here
	bytes    int
	maxBytes int
}

// add appends an event of a revision not below those before it.
func (r *ring) add(e *Event) {
	r.events = append(r.events, e)
	r.bytes += e.size()
	for r.bytes > r.maxBytes && len(r.events) > 0 {
		// Whole revisions leave, so that first stays true.
		r.first = r.events[0].KV.ModRevision + 1
		for len(r.events) > 0 && r.events[0].KV.ModRevision < r.first {
			r.bytes -= r.events[0].size()
			r.events[0] = nil
			r.events = r.events[1:]
		}
	}
}

// reset empties the ring; events from first on will follow.
func (r *ring) reset(first Revision) {
	r.events, r.bytes, r.first = nil, 0, first
}

// from returns the events from a revision on, which is not below first.
func (r *ring) from(revision Revision) []*Event {
	i := sort.Search(len(r.events), func(i int) bool { return r.events[i].KV.ModRevision >= revision })
	return r.events[i:]
}
