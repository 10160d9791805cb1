package etcdshim

import (
	"context"
	"encoding/binary"
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/server/v3/lease/leasepb"
	"google.golang.org/protobuf/proto"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// putFunc gets a key of a bucket and must not keep the slices.
type putFunc func(key, value []byte) error

// bucket is a part of what etcd's file holds. each calls put for its keys in order.
type bucket struct {
	name string
	each func(put putFunc) error
}

// The names that etcd gives to what is in its file: package schema of its server.
const (
	keyBucket = "key"

	consistentIndexKey  = "consistent_index"
	termKey             = "term"
	storageVersionKey   = "storageVersion"
	scheduledCompactKey = "scheduledCompactRev"
	finishedCompactKey  = "finishedCompactRev"
	clusterVersionKey   = "clusterVersion"
)

// storageVersion is the layout that the buckets have.
var storageVersion = version.Cluster(version.Version) + ".0"

// buckets is the store as etcd's file would hold it once compaction is done, in the order of the names. There are no members in it: a
// cluster that is made of it has its own.
func buckets(ctx context.Context, snapshot sqlstore.Snapshot) []bucket {
	return []bucket{
		{"alarm", func(put putFunc) error { return putAlarms(ctx, snapshot, put) }},
		{authBucket, func(put putFunc) error { return putAuth(ctx, snapshot, authBucket, put) }},
		{rolesBucket, func(put putFunc) error { return putAuth(ctx, snapshot, rolesBucket, put) }},
		{usersBucket, func(put putFunc) error { return putAuth(ctx, snapshot, usersBucket, put) }},
		{"cluster", func(put putFunc) error {
			return put([]byte(clusterVersionKey), []byte(storageVersion))
		}},
		{keyBucket, func(put putFunc) error { return putHistory(ctx, snapshot, put) }},
		{"lease", func(put putFunc) error { return putLeases(ctx, snapshot, put) }},
		{"members", none},
		{"members_removed", none},
		{"meta", func(put putFunc) error { return putMeta(snapshot.Meta(), put) }},
	}
}

func none(putFunc) error { return nil }

func putAlarms(ctx context.Context, snapshot sqlstore.Snapshot, put putFunc) error {
	alarms, err := snapshot.Alarms(ctx)
	if err != nil {
		return err
	}
	for _, a := range alarms {
		key, err := proto.Marshal(alarmMember(a))
		if err != nil {
			return err
		}
		if err := put(key, nil); err != nil {
			return err
		}
	}
	return nil
}

func putHistory(ctx context.Context, snapshot sqlstore.Snapshot, put putFunc) error {
	meta := snapshot.Meta()
	q := sqlstore.HistoryQuery{Compact: meta.CompactRevision, LiveAt: meta.CompactRevision, Through: meta.CurrentRevision}
	var encoder versionEncoder
	return snapshot.History(ctx, q, func(row *sqlstore.Row) error {
		key, value, err := encoder.encode(row)
		if err != nil {
			return err
		}
		return put(key, value)
	})
}

// putLeases puts leases, which count down from their TTL again where they are restored, as etcd's do.
func putLeases(ctx context.Context, snapshot sqlstore.Snapshot, put putFunc) error {
	leases, err := snapshot.Leases(ctx)
	if err != nil {
		return err
	}
	for _, l := range leases {
		value, err := proto.Marshal(&leasepb.Lease{ID: int64(l.ID), TTL: l.TTL})
		if err != nil {
			return err
		}
		if err := put(binary.BigEndian.AppendUint64(nil, uint64(l.ID)), value); err != nil {
			return err
		}
	}
	return nil
}

func putAuth(ctx context.Context, snapshot sqlstore.Snapshot, bucket string, put putFunc) error {
	entries, err := snapshot.Auth(ctx)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Bucket != bucket {
			continue
		}
		if err := put([]byte(e.Key), e.Value); err != nil {
			return err
		}
	}
	return nil
}

func putMeta(meta sqlstore.Meta, put putFunc) error {
	number := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
	var errs []error
	add := func(key string, value []byte) { errs = append(errs, put([]byte(key), value)) }
	add(consistentIndexKey, number(uint64(meta.CurrentRevision)))
	if meta.CompactRevision > 0 {
		compacted := appendPlace(nil, meta.CompactRevision, 0)
		add(finishedCompactKey, compacted)
		add(scheduledCompactKey, compacted)
	}
	add(storageVersionKey, []byte(storageVersion))
	add(termKey, number(raftTerm))
	return errors.Join(errs...)
}

// versionEncoder makes of a version what etcd's file has of it: in the key its place, with a mark if it is a tombstone, in the value an
// mvccpb.KeyValue. The slices are used again by the next call.
type versionEncoder struct {
	kv    mvccpb.KeyValue
	key   []byte
	value []byte
}

const tombstoneMark = 't'

func (e *versionEncoder) encode(row *sqlstore.Row) (key, value []byte, err error) {
	e.key = appendPlace(e.key[:0], row.ModRevision, row.Sub)
	if row.Version == 0 {
		e.key = append(e.key, tombstoneMark)
		fill(&e.kv, &sqlstore.KeyValue{Key: row.Key})
	} else {
		fill(&e.kv, &row.KeyValue)
	}
	e.value, err = proto.MarshalOptions{}.MarshalAppend(e.value[:0], &e.kv)
	return e.key, e.value, err
}

// appendPlace appends a place in history as etcd writes it.
func appendPlace(dst []byte, revision sqlstore.Revision, sub int64) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(revision))
	dst = append(dst, '_')
	return binary.BigEndian.AppendUint64(dst, uint64(sub))
}
