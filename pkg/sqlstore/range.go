package sqlstore

import (
	"bytes"
	"cmp"
	"context"
	"math"
	"slices"
)

// SortTarget is the field that a range is sorted by.
type SortTarget int

// Sort targets, in etcd's order.
const (
	SortByKey SortTarget = iota
	SortByVersion
	SortByCreate
	SortByMod
	SortByValue
)

// SortOrder is the direction of a sort.
type SortOrder int

// Sort orders, in etcd's order. SortNone is ascending for every target.
const (
	SortNone SortOrder = iota
	SortAscend
	SortDescend
)

// RangeRequest asks for the keys of a range at one revision.
type RangeRequest struct {
	KeyRange
	Revision Revision // 0 or less: the current one
	Limit    int64    // 0 or less: no limit
	Fields   Fields   // NoFields answers only the count

	SortTarget SortTarget
	SortOrder  SortOrder

	// Keys outside these bounds are left out of the answer but not out of its count; 0 is no bound.
	MinModRevision, MaxModRevision       Revision
	MinCreateRevision, MaxCreateRevision Revision
}

// RangeResult is the answer to RangeRequest.
type RangeResult struct {
	Revision Revision // the current revision of the snapshot that was read (I4)
	KVs      []KeyValue
	More     bool  // the limit left keys out
	Count    int64 // keys in the range, whatever limit and bounds say
	// AuthGeneration is the one of the snapshot that was read.
	AuthGeneration int64
}

// keyOrder says whether the answer comes in key order.
func (r *RangeRequest) keyOrder() bool {
	return r.SortTarget == SortByKey && r.SortOrder != SortDescend
}

// limitsFirst says whether the limit counts in key order, so that it can be left to the engine. With a target but no order it does, as in
// etcd: the first keys are sorted, not the first of the sorted ones taken.
func (r *RangeRequest) limitsFirst() bool { return r.SortOrder == SortNone || r.keyOrder() }

func (r *RangeRequest) bounded() bool {
	return r.MinModRevision != 0 || r.MaxModRevision != 0 || r.MinCreateRevision != 0 || r.MaxCreateRevision != 0
}

// query is what the engine is asked for.
func (r *RangeRequest) query() RangeQuery {
	q := RangeQuery{Revision: max(r.Revision, 0), Fields: r.Fields}
	q.Start, q.End = r.Span()
	if r.SortTarget == SortByValue && q.Fields == KeyFields {
		q.Fields = AllFields
	}
	if r.Limit > 0 && r.limitsFirst() && !r.bounded() && !r.Single() {
		q.Limit = r.Limit
		if !r.keyOrder() && q.Limit < math.MaxInt64 {
			q.Limit++ // etcd sorts one more
		}
	}
	q.Count = q.Limit > 0 || q.Fields == NoFields
	return q
}

// result turns the engine's rows into the answer.
func (r *RangeRequest) result(q RangeQuery, rows RangeRows) *RangeResult {
	res := &RangeResult{Revision: rows.Meta.CurrentRevision, Count: rows.Count, AuthGeneration: rows.Meta.AuthGeneration}
	if !q.Count {
		res.Count = int64(len(rows.Rows))
	}
	if len(rows.Rows) == 0 {
		return res
	}
	res.KVs = make([]KeyValue, 0, len(rows.Rows))
	for i := range rows.Rows {
		if r.keeps(&rows.Rows[i].KeyValue) {
			res.KVs = append(res.KVs, rows.Rows[i].KeyValue)
		}
	}
	r.sort(res.KVs)
	if r.Limit > 0 && int64(len(res.KVs)) > r.Limit {
		res.KVs = res.KVs[:r.Limit]
		res.More = true
	}
	if q.Limit > 0 {
		res.More = int64(len(res.KVs)) < res.Count
	}
	if r.Fields == KeyFields { // values are there if they were sorted by, or known to a batch
		for i := range res.KVs {
			res.KVs[i].Value = nil
			if r.SortTarget != SortByValue {
				res.KVs[i].Lease = 0 // etcd then answers from its index of keys, which has no leases
			}
		}
	}
	return res
}

func (r *RangeRequest) keeps(kv *KeyValue) bool {
	return (r.MinModRevision == 0 || kv.ModRevision >= r.MinModRevision) &&
		(r.MaxModRevision == 0 || kv.ModRevision <= r.MaxModRevision) &&
		(r.MinCreateRevision == 0 || kv.CreateRevision >= r.MinCreateRevision) &&
		(r.MaxCreateRevision == 0 || kv.CreateRevision <= r.MaxCreateRevision)
}

func (r *RangeRequest) sort(kvs []KeyValue) {
	if r.keyOrder() {
		return
	}
	slices.SortStableFunc(kvs, func(a, b KeyValue) int {
		var c int
		switch r.SortTarget {
		case SortByKey:
			c = bytes.Compare(a.Key, b.Key)
		case SortByVersion:
			c = cmp.Compare(a.Version, b.Version)
		case SortByCreate:
			c = cmp.Compare(a.CreateRevision, b.CreateRevision)
		case SortByMod:
			c = cmp.Compare(a.ModRevision, b.ModRevision)
		case SortByValue:
			c = bytes.Compare(a.Value, b.Value)
		}
		if r.SortOrder == SortDescend {
			return -c
		}
		return c
	})
}

// readable says whether the state at revision can be read from a snapshot that stands at m.
func (m Meta) readable(revision Revision) error {
	switch {
	case revision <= 0:
		return nil
	case revision > m.CurrentRevision:
		return ErrFutureRevision
	case revision < m.CompactRevision:
		return &CompactedError{CompactRevision: m.CompactRevision}
	}
	return nil
}

// Range reads the keys of a range. Errors: ErrCompacted, ErrFutureRevision, ErrUnavailable.
func (s *Store) Range(ctx context.Context, r *RangeRequest) (*RangeResult, error) {
	q := r.query()
	asked := q
	count, known := s.counts.of(q)
	if known {
		asked.Count = false
	}
	rows, err := s.read(ctx, asked)
	if err != nil {
		return nil, err
	}
	if known {
		rows.Count = count
	}
	s.counts.read(q, rows)
	return r.result(q, rows), nil
}

// read asks the engine, and checks that the revision asked for could be read.
func (s *Store) read(ctx context.Context, q RangeQuery) (RangeRows, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.ReadTimeout)
	defer cancel()
	rows, err := s.engine.Range(ctx, q)
	s.outage.saw(err)
	if err != nil {
		return RangeRows{}, err
	}
	if err := rows.Meta.readable(q.Revision); err != nil {
		return RangeRows{}, err
	}
	s.hub.observe(rows.Meta.CurrentRevision)
	if key, ok := q.Point(); ok && len(rows.Rows) == 0 {
		s.hub.missed(key, rows.Meta.CurrentRevision)
	}
	return rows, nil
}

// Chunks of a RangeStream start small, so that the first keys leave at once, and grow towards a size in bytes.
const (
	firstChunkKeys   = 64
	largestChunkKeys = 10_000
)

// RangeStream reads like Range, at one revision, and hands the keys to send in chunks of about chunkBytes. Only the last chunk
// carries More, Count and Revision, which is the revision current when the stream began. Keys come in key order; there may be no
// revision bounds. Between chunks no snapshot is held: a compaction beyond the revision ends the stream with
// ErrCompacted.
func (s *Store) RangeStream(ctx context.Context, r *RangeRequest, chunkBytes int, send func(*RangeResult) error) error {
	if r.Fields == NoFields {
		res, err := s.Range(ctx, r)
		if err != nil {
			return err
		}
		return send(res)
	}
	page := *r
	page.SortTarget, page.SortOrder = SortByKey, SortNone
	page.KeyRange.Key, page.KeyRange.End = r.Span()
	if page.KeyRange.End == nil {
		page.KeyRange.End = fromKey
	}
	var sent int64
	var began Revision
	limit := int64(firstChunkKeys)
	for {
		page.Limit = limit
		if r.Limit > 0 {
			page.Limit = min(limit, r.Limit-sent)
		}
		res, err := s.page(ctx, &page)
		if err != nil {
			return err
		}
		if began == 0 {
			began = res.Revision
			if page.Revision <= 0 {
				page.Revision = began
			}
		}
		sent += int64(len(res.KVs))
		last := !res.More || r.Limit > 0 && sent == r.Limit
		if !last {
			bytes := 0
			for i := range res.KVs {
				bytes += len(res.KVs[i].Key) + len(res.KVs[i].Value)
			}
			page.Key = successor(res.KVs[len(res.KVs)-1].Key)
			limit = nextChunk(limit, bytes, chunkBytes)
			if err := send(&RangeResult{KVs: res.KVs, AuthGeneration: res.AuthGeneration}); err != nil {
				return err
			}
			continue
		}
		final := &RangeResult{KVs: res.KVs, Revision: began, More: res.More, Count: sent, AuthGeneration: res.AuthGeneration}
		if res.More {
			rest := page
			rest.Key = successor(res.KVs[len(res.KVs)-1].Key)
			rest.Fields = NoFields
			counted, err := s.Range(ctx, &rest)
			if err != nil {
				return err
			}
			final.Count += counted.Count
		}
		return send(final)
	}
}

// page reads at most Limit keys and whether there are more, without counting the range.
func (s *Store) page(ctx context.Context, r *RangeRequest) (*RangeResult, error) {
	q := r.query()
	q.Count = false
	q.Limit++
	rows, err := s.read(ctx, q)
	if err != nil {
		return nil, err
	}
	more := int64(len(rows.Rows)) > r.Limit
	if more {
		rows.Rows = rows.Rows[:r.Limit]
	}
	q.Limit = 0 // all that was asked for is here
	res := r.result(q, rows)
	res.More = more
	return res, nil
}

func nextChunk(limit int64, got, want int) int64 {
	switch {
	case got < want/2:
		return min(limit*2, largestChunkKeys)
	case got > want*2:
		return max(limit/2, 1)
	}
	return limit
}

// successor is the first key after key.
func successor(key []byte) []byte {
	next := make([]byte, len(key)+1)
	copy(next, key)
	return next
}
