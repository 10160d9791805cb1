package sqlstore

import "context"

// Snapshot is the whole database at one moment (I4), for those who read much of it. It is used by one goroutine.
type Snapshot interface {
	// Meta says where the store stood.
	Meta() Meta
	// Range is as Engine.Range.
	Range(ctx context.Context, q RangeQuery) (RangeRows, error)
	// Leases lists all leases, by id.
	Leases(ctx context.Context) ([]Lease, error)
	// Alarms lists the alarms.
	Alarms(ctx context.Context) ([]Alarm, error)
	// Auth lists all entries, by bucket and key.
	Auth(ctx context.Context) ([]AuthEntry, error)
	// History shows versions in the order of their places. It has few in memory at a time. An error of visit ends it and is its result.
	History(ctx context.Context, q HistoryQuery, visit func(*Row) error) error
}

// HistoryQuery asks for history as it is when a compaction at Compact has deleted all that it may, however far it is.
type HistoryQuery struct {
	// Compact is the revision above which every version is shown, up to Through.
	Compact Revision
	Through Revision
	// LiveAt says which versions at or below Compact are shown: those that are live at this revision, which is not below Compact. A
	// tombstone of the revision Compact itself is shown, unless its key lives again at LiveAt.
	LiveAt Revision
}

// Snapshot calls fn with a snapshot. The database keeps what it shows until fn returns, so fn must not wait for a client.
func (s *Store) Snapshot(ctx context.Context, fn func(Snapshot) error) error {
	return s.engine.Snapshot(ctx, fn)
}
