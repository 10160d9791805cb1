package sqlstore

import (
	"bytes"
	"context"
	"time"
)

// MaxChangesPerTxn bounds how many keys one Txn may change: the sub of a change (I3) fits in 20 bits.
const MaxChangesPerTxn = 1 << 20

// Engine is one SQL implementation of the tables that docs/design/storage.md describes. Engines know nothing of Txns, watches
// or expiry. Every method may be called from several goroutines; errors match one of this package's sentinels where the
// cause is known (ErrNoSpace, ErrKeyTooLong, ErrUnavailable, ErrOutcomeUnknown) and wrap the driver's.
type Engine interface {
	// Name is sqlite or postgres.
	Name() string

	// Range answers one read from one snapshot (I4). The revision in q is not checked against the snapshot's Meta: that is
	// the store's part.
	Range(ctx context.Context, q RangeQuery) (RangeRows, error)

	// Events reads history, oldest first, from one snapshot.
	Events(ctx context.Context, q EventsQuery) (EventRows, error)

	// Begin starts the one write transaction, loads Meta and the live rows of keys, and keeps other writers out until
	// Commit or Rollback.
	Begin(ctx context.Context, keys [][]byte) (WriteTx, []Row, error)

	// Leases lists all leases with their keepalive counts.
	Leases(ctx context.Context) ([]Lease, error)

	// LeaseKeys lists the live keys attached to a lease, in key order.
	LeaseKeys(ctx context.Context, id LeaseID) ([][]byte, error)

	// Alarms lists the alarms. PutAlarm keeps one that may be there already, and DeleteAlarm says whether it was: each is a transaction
	// of its own, outside the order of revisions.
	Alarms(ctx context.Context) ([]Alarm, error)
	PutAlarm(ctx context.Context, alarm Alarm) error
	DeleteAlarm(ctx context.Context, alarm Alarm) (found bool, err error)

	// Auth reads all entries and their generation from one snapshot.
	Auth(ctx context.Context) (AuthState, error)

	// DeleteHistory looks at about limit rows of history, from where the last call stopped up to the stored compact
	// revision (I5), deletes the versions they replaced and the tombstones among them, and stores the place it reached:
	// one short transaction of its own. When there is nothing to delete it gives some space back to the file system, if
	// the database does not do that itself. done says that nothing is left to do.
	DeleteHistory(ctx context.Context, limit int) (done bool, err error)

	// Defragment gives the free space of the database back, to the file system or to later writes, without keeping writers out for
	// long. It takes as long as it takes.
	Defragment(ctx context.Context) error

	// Shared says whether other processes may write to the same database; then Listen is worth calling.
	Shared() bool

	// Listen calls hint once when it begins to listen, then with true for each notification that some process has committed,
	// this one included (I7), until ctx ends or the connection is lost.
	Listen(ctx context.Context, hint func(notified bool)) error

	// Walk shows the whole database as it is stored, dead history too, from one snapshot (I4).
	Walk(ctx context.Context, v Visitor) error

	// Snapshot calls fn with a snapshot of the whole database, which lasts until fn returns. An error of fn is its result.
	Snapshot(ctx context.Context, fn func(Snapshot) error) error

	// Size is the size of the database and the part of it that holds data, in bytes.
	Size(ctx context.Context) (total, inUse int64, err error)

	// Describe asks the database what it is and how it does: one snapshot, one round trip, a few rows whatever its size.
	Describe(ctx context.Context) (Description, error)

	// Check says whether the database answers and has the schema this program knows.
	Check(ctx context.Context) error

	// Close releases everything. No call may be under way.
	Close() error
}

// Description is what a database says of itself.
type Description struct {
	Version string // of the SQL engine, as it names itself
	Meta    Meta
	// Reached is the revision up to which dead history is deleted; the work is done when it is the compact revision.
	Reached        Revision
	LastCompaction Compaction // zero: none yet
	SizeBytes      int64      // as Engine.Size
	InUseBytes     int64
	DeadRows       int64 // of Postgres: that no vacuum has made room of yet
	Servers        int   // that share the database, this one included
}

// Compaction is one whose history some server has deleted, or has begun to.
type Compaction struct {
	Revision Revision
	Began    time.Time
	Ended    time.Time // of what is done so far
}

// Took is how long deleting history took so far.
func (c Compaction) Took() time.Duration { return c.Ended.Sub(c.Began) }

// WriteTx is the one write transaction. It is used by one goroutine and ends with Commit or Rollback.
type WriteTx interface {
	// Meta is what Begin loaded.
	Meta() Meta
	// Get returns the live rows among keys, in no particular order.
	Get(ctx context.Context, keys [][]byte) ([]Row, error)
	// Range sees what Write wrote; the rest is as Engine.Range.
	Range(ctx context.Context, q RangeQuery) (RangeRows, error)
	// Lease returns a lease; ErrLeaseNotFound if there is none.
	Lease(ctx context.Context, id LeaseID) (Lease, error)
	// LeaseKeys lists the live keys attached to a lease, in key order; it sees what Write wrote.
	LeaseKeys(ctx context.Context, id LeaseID) ([][]byte, error)
	// PutLease creates or replaces a lease.
	PutLease(ctx context.Context, lease Lease) error
	// DeleteLease removes a lease.
	DeleteLease(ctx context.Context, id LeaseID) error
	// Auth lists all entries, by bucket and key; it sees what PutAuth wrote.
	Auth(ctx context.Context) ([]AuthEntry, error)
	// PutAuth creates, replaces or removes an entry.
	PutAuth(ctx context.Context, entry AuthEntry) error
	// Write appends changes to history and brings the live keys up to date.
	Write(ctx context.Context, changes []Change) error
	// Commit does what Write does, stores meta and commits. On ErrOutcomeUnknown ask Committed.
	Commit(ctx context.Context, changes []Change, meta Meta) error
	// Committed says, after ErrOutcomeUnknown, whether the transaction was committed. It waits for a transaction that still
	// runs in the database to end, so its answer is final.
	Committed(ctx context.Context) (bool, error)
	// Rollback undoes everything; it does nothing after Commit.
	Rollback()
}

// Meta is the one row that says where the store stands.
type Meta struct {
	ClusterID       int64 // random, made with the database, never 0
	CurrentRevision Revision
	CompactRevision Revision // 0 when never compacted
	AuthGeneration  int64    // how often the entries of Auth have changed, from 1 on
}

// Row is a live key, or a version of a key, with its place in history.
type Row struct {
	KeyValue
	Sub int64 // place among the changes of its revision
}

// Change is one row of history: a put, or a tombstone (Version 0).
type Change struct {
	Row
	// PrevRevision and PrevSub are the place of the live version that this change replaced; 0, 0 when there was none.
	// They make history readable without a search: the version live at R of a key changed since is the one that the
	// key's only change with PrevRevision <= R < ModRevision points to.
	PrevRevision Revision
	PrevSub      int64
}

// Fields says how much of each row a read wants.
type Fields int

// What a read can want; the values of rows are read only for AllFields.
const (
	AllFields Fields = iota
	KeyFields        // everything but the value
	NoFields         // no rows, only their count
)

// RangeQuery asks for the live rows of [Start, End) in key order.
type RangeQuery struct {
	Start []byte
	End   []byte // nil: no upper end
	// Revision is the state to read; 0 is the newest.
	Revision Revision
	Limit    int64 // 0: no limit
	Fields   Fields
	// Count asks for the number of keys in the range whatever the limit.
	Count bool
}

// Point returns the key if the query asks for the newest state of one key with all its fields: the read that is worth a statement of
// its own.
func (q *RangeQuery) Point() (key []byte, ok bool) {
	n := len(q.Start)
	ok = q.Revision == 0 && q.Fields == AllFields && len(q.End) == n+1 && q.End[n] == 0 && bytes.Equal(q.Start, q.End[:n])
	return q.Start, ok
}

// The forms of a RangeQuery that need statements of their own; a form is a sum of these.
const (
	FormFrom = 1 << iota // no upper end
	FormAt               // at a revision
	FormKeys             // without values
	Forms                // how many forms there are
)

// Form is the form of the query: the statement for its rows. Without FormKeys it is the statement that counts.
func (q *RangeQuery) Form() int {
	form := 0
	if q.End == nil {
		form |= FormFrom
	}
	if q.Revision > 0 {
		form |= FormAt
	}
	if q.Fields == KeyFields {
		form |= FormKeys
	}
	return form
}

// RangeRows is the answer to RangeQuery. Rows and Count mean nothing when Meta shows that the revision is not readable.
type RangeRows struct {
	Meta  Meta
	Rows  []Row
	Count int64
}

// EventsQuery asks for the history of [Start, End) from revision From to Through, both included.
type EventsQuery struct {
	Start   []byte
	End     []byte // nil: no upper end
	From    Revision
	Through Revision // 0: as far as there is
	// Limit and LimitBytes end the answer after so many events, or with the event that reaches so many bytes of keys and
	// values; 0: no limit.
	Limit      int
	LimitBytes int
}

// EventRows is the answer to EventsQuery. Events mean nothing when Meta shows that From is compacted.
type EventRows struct {
	Meta   Meta
	Events []*Event
	More   bool // a limit ended the answer
}

// Visitor is called by Walk: Meta once, then Lease for each lease, Change for each row of history in the order of their places, and
// Key for each live key in key order, without its value. An error ends the walk and is its result.
type Visitor struct {
	Meta   func(meta Meta, reached Revision) error // reached: up to which revision DeleteHistory has come
	Lease  func(Lease) error
	Change func(*Change) error
	Key    func(*Row) error
}

// Lease is a lease as it is stored. Deadlines are not stored: a clock in the database or a changed clock on a machine must not
// expire anything. Each server counts down from the moment it last saw Keepalives change.
type Lease struct {
	ID         LeaseID
	TTL        int64 // seconds, as granted
	Keepalives int64 // one more with each renewal, from a random number on: a lease granted again differs from the one before
}
