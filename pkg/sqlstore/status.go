package sqlstore

// Status is what the store knows of itself without asking the database.
type Status struct {
	Revision        Revision // the newest that this process has seen
	CompactRevision Revision // the newest that this process knows of
	Keys            int64    // live, at the revision up to which events were published; -1: not counted yet
	Watchers        int
	// WatcherLag is by how many revisions the slowest watcher is behind what was published.
	WatcherLag int64
}

// Status tells how the store is.
func (s *Store) Status() Status {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	status := Status{Revision: s.Revision(), CompactRevision: h.compacted, Keys: h.liveKeys()}
	for stream := range h.streams {
		for w := range stream.watchers {
			status.Watchers++
			given := h.published
			switch {
			case !w.synced:
				given = min(given, w.next-1)
			case len(w.queue) > 0:
				given = w.queue[0].KV.ModRevision - 1
			}
			status.WatcherLag = max(status.WatcherLag, int64(h.published-given))
		}
	}
	return status
}
