package sqlstore

import "sync"

// counts remembers how many keys are left after a page of a list. Counting costs time for each key, so without it each page of a large
// list would cost as much as the whole list has keys; and how many keys a range has at a revision never changes.
type counts struct {
	mu    sync.Mutex
	left  map[remainder]int64
	order [rememberedCounts]remainder // a ring, oldest at next
	next  int
}

// rememberedCounts is how many lists can be under way at once for each to be counted only once.
const rememberedCounts = 256

// remainder is the rest of a list.
type remainder struct {
	start, end string // end is empty if there is none
	revision   Revision
}

func newCounts() *counts { return &counts{left: make(map[remainder]int64, rememberedCounts)} }

// of returns the count that q asks for, if it is known.
func (c *counts) of(q RangeQuery) (int64, bool) {
	if !q.Count || q.Limit == 0 || q.Revision == 0 {
		return 0, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.left[remainder{string(q.Start), string(q.End), q.Revision}]
	return n, ok
}

// read remembers what is left after the rows that were read.
func (c *counts) read(q RangeQuery, rows RangeRows) {
	left := rows.Count - int64(len(rows.Rows))
	if !q.Count || q.Limit == 0 || len(rows.Rows) == 0 || left == 0 {
		return
	}
	revision := q.Revision
	if revision == 0 {
		revision = rows.Meta.CurrentRevision
	}
	rest := remainder{string(successor(rows.Rows[len(rows.Rows)-1].Key)), string(q.End), revision}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.left[rest]; ok {
		return
	}
	delete(c.left, c.order[c.next])
	c.left[rest], c.order[c.next] = left, rest
	c.next = (c.next + 1) % rememberedCounts
}
