package sqlstore

import (
	"errors"
	"fmt"
)

// What the store answers besides success. Match with errors.Is; the texts are for logs only.
var (
	// ErrCompacted: the revision asked for is below the compact revision.
	ErrCompacted = errors.New("revision has been compacted")
	// ErrFutureRevision: the revision asked for is above the current one.
	ErrFutureRevision = errors.New("revision is in the future")
	// ErrKeyNotFound: a put that keeps the value or the lease met no key.
	ErrKeyNotFound = errors.New("key not found")
	// ErrDuplicateKey: a Txn changes one key twice.
	ErrDuplicateKey = errors.New("duplicate key in Txn")
	// ErrTooManyChanges: a Txn changes more keys than one revision holds (MaxChangesPerTxn).
	ErrTooManyChanges = errors.New("too many changes in one Txn")
	// ErrKeyTooLong: the database cannot keep a key of this length; nothing was done.
	ErrKeyTooLong = errors.New("key is too long for the database")
	// ErrLeaseNotFound: no such lease.
	ErrLeaseNotFound = errors.New("lease not found")
	// ErrLeaseExists: the id of a lease to grant is taken.
	ErrLeaseExists = errors.New("lease already exists")
	// ErrAuthChanged: who may do what is no longer what the Txn was permitted by; nothing was done.
	ErrAuthChanged = errors.New("authorization has changed")
	// ErrNoSpace: the database cannot grow; reads go on.
	ErrNoSpace = errors.New("no space left for the database")
	// ErrUnavailable: the database is away; what was asked for was not done. Try again.
	ErrUnavailable = errors.New("database unavailable")
	// ErrOutcomeUnknown: the connection was lost in COMMIT and the database stayed away; the write may have happened.
	ErrOutcomeUnknown = errors.New("outcome of the commit is unknown")
	// ErrClosed: the store is closed.
	ErrClosed = errors.New("store is closed")
)

// CompactedError says up to which revision history is gone. It matches ErrCompacted.
type CompactedError struct {
	CompactRevision Revision
}

func (e *CompactedError) Error() string {
	return fmt.Sprintf("%v: compact revision is %d", ErrCompacted, e.CompactRevision)
}

// Is matches ErrCompacted.
func (e *CompactedError) Is(target error) bool { return target == ErrCompacted }
