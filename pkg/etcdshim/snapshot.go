package etcdshim

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"go.etcd.io/bbolt"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubase/kubase/pkg/sqlstore"
)

const (
	// The size of the pieces in which a snapshot is sent, as in etcd.
	snapshotChunkBytes = 32 << 10
	// How much is put into the file before it is written out: what building it holds in memory.
	snapshotBatchBytes = 4 << 20
	// How full the pages of the file get. Keys come in order, so there is no need of room between them; as in etcd.
	snapshotFill = 0.9
)

// Snapshot streams a file of etcd's, which `etcdutl snapshot restore` takes, and its SHA-256. The file is made first, of one snapshot of
// the database, so that a slow client does not hold that.
func (s *maintenanceServer) Snapshot(_ *pb.SnapshotRequest, stream pb.Maintenance_SnapshotServer) error {
	file, size, err := s.snapshotFile(stream.Context())
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	hash := sha256.New()
	for left := size; left > 0; {
		blob := make([]byte, min(left, snapshotChunkBytes)) // a new one each time: Send may keep it
		if _, err := io.ReadFull(file, blob); err != nil {
			return s.rpcError(fmt.Errorf("reading a snapshot: %w", err))
		}
		_, _ = hash.Write(blob)
		left -= int64(len(blob))
		if err := stream.Send(&pb.SnapshotResponse{RemainingBytes: uint64(left), Blob: blob, Version: storageVersion}); err != nil {
			return err
		}
	}
	return stream.Send(&pb.SnapshotResponse{Blob: hash.Sum(nil), Version: storageVersion})
}

// snapshotFile makes a file that has no name any more: it is gone when it is closed, or the process ends in any way.
func (s *maintenanceServer) snapshotFile(ctx context.Context) (file *os.File, size int64, err error) {
	file, err = os.CreateTemp("", "kubase-snapshot-")
	if err != nil {
		return nil, 0, s.snapshotError(err)
	}
	forDB, err := os.OpenFile(file.Name(), os.O_RDWR, 0)
	err = errors.Join(err, os.Remove(file.Name()))
	if err == nil {
		size, err = s.fillSnapshot(ctx, forDB)
	}
	if err != nil {
		_ = file.Close()
		return nil, 0, s.snapshotError(err)
	}
	return file, size, nil
}

// fillSnapshot writes the database to a file and closes it. size is the part of the file that counts.
func (s *maintenanceServer) fillSnapshot(ctx context.Context, file *os.File) (size int64, err error) {
	db, err := bbolt.Open(file.Name(), 0o600, &bbolt.Options{
		NoSync: true, NoGrowSync: true, FreelistType: bbolt.FreelistMapType,
		OpenFile: func(string, int, os.FileMode) (*os.File, error) { return file, nil },
	})
	if err != nil {
		return 0, err // and the file is closed
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = s.walk(ctx, func(snapshot sqlstore.Snapshot) error {
		for _, b := range buckets(ctx, snapshot) {
			if err := fillBucket(db, b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return size, db.View(func(tx *bbolt.Tx) error {
		size = tx.Size()
		return nil
	})
}

func fillBucket(db *bbolt.DB, b bucket) error {
	w := bucketWriter{db: db, name: []byte(b.name)}
	defer w.rollback()
	if err := w.begin(); err != nil {
		return err
	}
	if err := b.each(w.put); err != nil {
		return err
	}
	return w.tx.Commit()
}

// bucketWriter writes a bucket in several transactions.
type bucketWriter struct {
	db     *bbolt.DB
	name   []byte
	tx     *bbolt.Tx
	bucket *bbolt.Bucket
	bytes  int // put in this transaction
}

func (w *bucketWriter) begin() (err error) {
	if w.tx, err = w.db.Begin(true); err != nil {
		return err
	}
	w.bytes = 0
	if w.bucket, err = w.tx.CreateBucketIfNotExists(w.name); err != nil {
		return err
	}
	w.bucket.FillPercent = snapshotFill
	return nil
}

func (w *bucketWriter) put(key, value []byte) error {
	if w.bytes += len(key) + len(value); w.bytes > snapshotBatchBytes {
		if err := w.tx.Commit(); err != nil {
			return err
		}
		if err := w.begin(); err != nil {
			return err
		}
	}
	// The file keeps the slices until the commit.
	return w.bucket.Put(append([]byte(nil), key...), append([]byte(nil), value...))
}

// rollback does nothing after a commit.
func (w *bucketWriter) rollback() {
	if w.tx != nil {
		_ = w.tx.Rollback()
	}
}

// snapshotError tells the client of a full disk, which it cannot see.
func (s *maintenanceServer) snapshotError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG) {
		s.log.Error("no space for the file of a snapshot: set TMPDIR to a directory that has it", "directory", os.TempDir(), "error", err)
		return status.Errorf(codes.ResourceExhausted,
			"etcdserver: no space in %s for the snapshot, which needs about as much as the data: set TMPDIR of the server to another directory", os.TempDir())
	}
	return s.rpcError(err)
}
