package etcdshim_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubase/kubase/pkg/etcdshim"
)

// fillStore puts 4 MiB.
func fillStore(t *testing.T, a api) {
	t.Helper()
	for i := range 64 {
		a.put(t, fmt.Sprintf("k/%d", i), strings.Repeat("x", 64<<10))
	}
}

// temporaryDirectory is where the server's temporary files go from now on.
func temporaryDirectory(t *testing.T) string {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	return dir
}

func isEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("%s is left in the temporary directory", e.Name())
	}
}

func TestSnapshotIsStreamedWithItsHash(t *testing.T) {
	a := serve(t, etcdshim.Options{})
	fillStore(t, a)
	dir := temporaryDirectory(t)
	stream, err := a.maintenance.Snapshot(t.Context(), &pb.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var data bytes.Buffer
	var last []byte
	for left := uint64(0); ; {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		isEmpty(t, dir)
		if data.Len() > 0 && left != piece.RemainingBytes+uint64(len(piece.Blob)) && len(piece.Blob) != sha256.Size {
			t.Fatalf("%d bytes remained, then %d after %d", left, piece.RemainingBytes, len(piece.Blob))
		}
		left, last = piece.RemainingBytes, piece.Blob
		data.Write(piece.Blob)
	}
	file := data.Bytes()[:data.Len()-sha256.Size]
	if hash := sha256.Sum256(file); !bytes.Equal(last, hash[:]) || len(file)%512 != 0 {
		t.Errorf("%d bytes with hash %x end with %x", len(file), hash, last)
	}
	if len(file) < 4<<20 || len(file) > 6<<20 {
		t.Errorf("4 MiB of values make a snapshot of %d bytes", len(file))
	}
}

func TestSnapshotLeavesNothingBehindWhenTheClientGoes(t *testing.T) {
	a := serve(t, etcdshim.Options{})
	fillStore(t, a)
	dir := temporaryDirectory(t)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := a.maintenance.Snapshot(ctx, &pb.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	isEmpty(t, dir)
	a.put(t, "k", "v") // the server goes on
}

func TestSnapshotSaysWhenItsDirectoryIsFull(t *testing.T) {
	a := serve(t, etcdshim.Options{})
	fillStore(t, a)
	dir := temporaryDirectory(t)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(unix.SIGXFSZ) // so that a write fails with EFBIG
	t.Cleanup(func() { signal.Reset(unix.SIGXFSZ) })
	full := unix.Rlimit{Cur: 1 << 20, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &full); err != nil { // stands for a disk with 1 MiB left
		t.Fatal(err)
	}
	stream, err := a.maintenance.Snapshot(t.Context(), &pb.SnapshotRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "no space in "+dir) {
		t.Errorf("got %v", err)
	}
	isEmpty(t, dir)
	if stream, err = a.maintenance.Snapshot(t.Context(), &pb.SnapshotRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Errorf("with space again: %v", err)
	}
}

func TestHashIsOfWhatIsStored(t *testing.T) {
	a, b := serve(t, etcdshim.Options{Name: "a"}), serve(t, etcdshim.Options{Name: "b"})
	hash := func(a api) uint32 {
		t.Helper()
		r, err := a.maintenance.Hash(t.Context(), &pb.HashRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Hash
	}
	seen := map[uint32]string{}
	for i, change := range []func(a api) error{
		func(api) error { return nil },
		func(a api) error { a.put(t, "k", "v"); return nil },
		func(a api) error { a.put(t, "k", "v"); return nil },
		func(a api) error {
			_, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: 1, TTL: 1000})
			return err
		},
		func(a api) error {
			_, err := a.kv.Compact(t.Context(), &pb.CompactionRequest{Revision: 2})
			return err
		},
		func(a api) error {
			_, err := a.kv.Compact(t.Context(), &pb.CompactionRequest{Revision: 3, Physical: true})
			return err
		},
	} {
		if err := errors.Join(change(a), change(b)); err != nil {
			t.Fatal(err)
		}
		if hash(a) != hash(b) {
			t.Errorf("after change %d two servers with the same data have different hashes", i)
		}
		if before, ok := seen[hash(a)]; ok {
			t.Errorf("after change %d the hash is the same as after change %s", i, before)
		}
		seen[hash(a)] = fmt.Sprint(i)
	}
}
