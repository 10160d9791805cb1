package sqlstore

import "bytes"

// Revision numbers the state of the store. The empty store is at revision 1, as in etcd; each committed Txn that changes
// something takes the next one.
type Revision int64

// LeaseID names a lease; 0 is no lease.
type LeaseID int64

// KeyValue is one version of a key.
type KeyValue struct {
	Key            []byte
	Value          []byte // empty when only keys were asked for
	CreateRevision Revision
	ModRevision    Revision
	Version        int64 // 1 at creation, one more with each put; 0 in a tombstone
	Lease          LeaseID
}

// EventType says what happened to a key.
type EventType int

// The two kinds of event.
const (
	EventPut EventType = iota
	EventDelete
)

// Event is one change of one key. Events are shared between watchers and must not be changed.
type Event struct {
	Type EventType
	// KV is the key after the change. Of a deleted key only Key and ModRevision are set.
	KV KeyValue
	// Prev is the version that the change replaced, nil if there was none or it is compacted.
	Prev *KeyValue
}

// KeyRange is a set of keys in etcd's notation: [Key, End), one key if End is empty, all keys from Key if End is "\x00".
type KeyRange struct {
	Key []byte
	End []byte
}

var fromKey = []byte{0}

// Single says whether the range is one key.
func (r KeyRange) Single() bool { return len(r.End) == 0 }

// Unbounded says whether the range has no upper end.
func (r KeyRange) Unbounded() bool { return bytes.Equal(r.End, fromKey) }

// Contains says whether key lies in the range.
func (r KeyRange) Contains(key []byte) bool {
	switch {
	case r.Single():
		return bytes.Equal(key, r.Key)
	case r.Unbounded():
		return bytes.Compare(key, r.Key) >= 0
	default:
		return bytes.Compare(key, r.Key) >= 0 && bytes.Compare(key, r.End) < 0
	}
}

// Span is the range as [start, end); end is nil when there is no upper end. The successor of a key is the key with a zero
// byte behind it, so a single key is a span too.
func (r KeyRange) Span() (start, end []byte) {
	switch {
	case r.Single():
		end = make([]byte, len(r.Key)+1)
		copy(end, r.Key)
		return r.Key, end
	case r.Unbounded():
		return r.Key, nil
	default:
		return r.Key, r.End
	}
}

// setPrev sets the version that the event replaced. As in etcd it is the version before the event's revision, even if the key was
// changed earlier in the same revision: by events before, of which the first has it.
func (e *Event) setPrev(prev *KeyValue, before []*Event) {
	if prev != nil && prev.ModRevision == e.KV.ModRevision {
		for i := len(before) - 1; i >= 0 && before[i].KV.ModRevision == e.KV.ModRevision; i-- {
			if bytes.Equal(before[i].KV.Key, e.KV.Key) {
				prev = before[i].Prev
			}
		}
	}
	e.Prev = prev
}

// after is the event as it can be reported after a compaction: at or below the compact revision, the version that it replaced is
// no longer readable.
func (e *Event) after(compacted Revision) *Event {
	if e.Prev == nil || e.KV.ModRevision > compacted {
		return e
	}
	return &Event{Type: e.Type, KV: e.KV}
}

// size is roughly what the event holds in memory, in bytes.
func (e *Event) size() int {
	n := len(e.KV.Key) + len(e.KV.Value)
	if e.Prev != nil {
		n += len(e.Prev.Value)
	}
	return n + eventOverhead
}

const eventOverhead = 256 // structs, pointers, allocator
