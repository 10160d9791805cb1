package etcdshim

import (
	"context"
	"hash/crc32"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

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
		_, _ = hash.Write([]byte(keyBucket))
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

// Hash is etcd's hash of all that its file would hold, but for what a server changes by itself. Servers on one database agree; an etcd
// with the same history has members in its file besides.
func (s *maintenanceServer) Hash(ctx context.Context, _ *pb.HashRequest) (*pb.HashResponse, error) {
	out := &pb.HashResponse{}
	err := s.walk(ctx, func(snapshot sqlstore.Snapshot) error {
		out.Header = s.header(snapshot.Meta().CurrentRevision)
		hash := crc32.New(castagnoli)
		for _, b := range buckets(ctx, snapshot) {
			_, _ = hash.Write([]byte(b.name))
			if err := b.each(func(key, value []byte) error {
				switch string(key) {
				case consistentIndexKey, termKey, storageVersionKey: // no key of another bucket looks like these
					return nil
				}
				_, _ = hash.Write(key)
				_, _ = hash.Write(value)
				return nil
			}); err != nil {
				return err
			}
		}
		out.Hash = hash.Sum32()
		return nil
	})
	if err != nil {
		return nil, s.rpcError(err)
	}
	return out, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)
