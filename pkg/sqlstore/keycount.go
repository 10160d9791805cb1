package sqlstore

import "context"

// keyCount is how many live keys there are. Counting costs time for each key, so that is done once, and events keep the count.
type keyCount struct {
	keys int64
	at   Revision // at which they were counted; 0: they were not
}

// add takes an event that follows all those before it. What was counted already is not counted again.
func (c *keyCount) add(e *Event) {
	switch {
	case e.KV.ModRevision <= c.at:
	case e.KV.Version == 0:
		c.keys--
	case e.KV.Version == 1:
		c.keys++
	}
}

// liveKeys is the number of live keys; -1 if they were not counted yet, which is then done. The caller holds mu.
func (h *hub) liveKeys() int64 {
	if h.keys.at > 0 {
		return h.keys.keys
	}
	select {
	case h.count <- struct{}{}:
	default:
	}
	return -1
}

// countLoop counts the live keys when somebody has asked for them.
func (h *hub) countLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.count:
		}
		counting, cancel := context.WithTimeout(ctx, h.store.opts.ReadTimeout)
		rows, err := h.store.engine.Range(counting, RangeQuery{Start: fromKey, Fields: NoFields, Count: true})
		cancel()
		if err == nil { // else the next who asks makes it try again
			h.counted(rows)
		}
	}
}

// counted begins to keep a count. If events since then have left the ring already, the next who asks makes it count again.
func (h *hub) counted(rows RangeRows) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := rows.Meta.CurrentRevision
	if at+1 < h.ring.first {
		return
	}
	h.keys = keyCount{keys: rows.Count, at: at}
	for _, e := range h.ring.from(at + 1) {
		h.keys.add(e)
	}
}
