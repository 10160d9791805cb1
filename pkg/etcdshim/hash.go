package etcdshim

import (
	"context"
	"encoding/binary"
	"hash/crc32"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// HashKV is etcd's hash of history up to a revision, by the rule of hash.go in etcd's package mvcc: the CRC-32 (Castagnoli) of the name
// of the bucket, then of each version's key and value in that bucket. Versions at or below the compact revision count if they are live
// at the revision asked for; if no key is, those that compaction keeps count; tombstones of the compact revision never do. So it does
// not depend on how far a compaction is, and servers and etcd with the same history agree.
func (s *maintenanceServer) HashKV(ctx context.Context, r *pb.HashKVRequest) (*pb.HashKVResponse, error) {
	out := &pb.HashKVResponse{}
	err := s.walk(ctx, func(snapshot sqlstore.Snapshot) error {
		meta := snapshot.Meta()
		q := sqlstore.HistoryQuery{Compact: meta.CompactRevision, Through: sqlstore.Revision(r.Revision), LiveAt: meta.CompactRevision}
		switch {
		case q.Through > 0 && q.Through < meta.CompactRevision:
			return sqlstore.ErrCompacted
		case q.Through > meta.CurrentRevision:
			return sqlstore.ErrFutureRevision
		case q.Through == 0:
			q.Through = meta.CurrentRevision
		}
		if q.Through > 0 {
			live, err := snapshot.Range(ctx, sqlstore.RangeQuery{
				Start: []byte{0}, Revision: q.Through, Limit: 1, Fields: sqlstore.KeyFields,
			})
			if err != nil {
				return err
			}
			if len(live.Rows) > 0 {
				q.LiveAt = q.Through
			}
		}
		hash := crc32.New(castagnoli)
		_, _ = hash.Write(keyBucket)
		var encoder versionEncoder
		err := snapshot.History(ctx, q, func(row *sqlstore.Row) error {
			if row.Version == 0 && row.ModRevision == meta.CompactRevision {
				return nil
			}
			key, value, err := encoder.encode(row)
			_, _ = hash.Write(key)
			_, _ = hash.Write(value)
			return err
		})
		out.Header = s.header(meta.CurrentRevision)
		out.Hash = hash.Sum32()
		out.HashRevision = int64(q.Through)
		out.CompactRevision = int64(meta.CompactRevision)
		if meta.CompactRevision == 0 {
			out.CompactRevision = -1 // what etcd says before the first compaction
		}
		return err
	})
	if err != nil {
		return nil, s.rpcError(err)
	}
	return out, nil
}

// walk calls fn with a snapshot. One call at a time walks through the database: more would take the connections that other reads need.
func (s *maintenanceServer) walk(ctx context.Context, fn func(sqlstore.Snapshot) error) error {
	select {
	case s.walking <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stopping.Done():
		return rpctypes.ErrGRPCStopped
	}
	defer func() { <-s.walking }()
	return s.store.Snapshot(ctx, fn)
}

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	keyBucket  = []byte("key")
)

// versionEncoder makes of a version what etcd's file has of it: in the key its place, with a mark if it is a tombstone, in the value an
// mvccpb.KeyValue. The slices are used again by the next call.
type versionEncoder struct {
	kv    mvccpb.KeyValue
	key   []byte
	value []byte
}

const tombstoneMark = 't'

func (e *versionEncoder) encode(row *sqlstore.Row) (key, value []byte, err error) {
	e.key = binary.BigEndian.AppendUint64(e.key[:0], uint64(row.ModRevision))
	e.key = append(e.key, '_')
	e.key = binary.BigEndian.AppendUint64(e.key, uint64(row.Sub))
	if row.Version == 0 {
		e.key = append(e.key, tombstoneMark)
		fill(&e.kv, &sqlstore.KeyValue{Key: row.Key})
	} else {
		fill(&e.kv, &row.KeyValue)
	}
	e.value, err = proto.MarshalOptions{}.MarshalAppend(e.value[:0], &e.kv)
	return e.key, e.value, err
}
