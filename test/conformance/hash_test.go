package conformance

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

// TestHashKVIsEtcds compares the hashes of random histories with those of a real etcd, at every revision that can be asked for and some
// that cannot. Before that etcd is started anew: it answers for its last compactions from memory, with the hash it made before them.
func TestHashKVIsEtcds(t *testing.T) {
	real := startEtcd(t, nil)
	ours := []server{startKubase(t, "sqlite"), startKubase(t, "postgres")}
	t.Logf("-seed=%d", *seed)
	g := newGenerator(rand.NewPCG(*seed, 1))
	do := func(r proto.Message) {
		t.Helper()
		answer, wantErr := real.send(t, r)
		for _, s := range ours {
			if _, gotErr := s.send(t, r); gotErr != wantErr {
				t.Fatalf("%s: %v is answered %q, by etcd %q", s.name, r, gotErr, wantErr)
			}
		}
		if wantErr == "" {
			g.learn(r, answer)
		}
	}
	change := func(n int) {
		t.Helper()
		for range n {
			r := g.request()
			if !isCompaction(r) && !isAlarm(r) {
				do(r)
			}
		}
	}
	compact := func(revision int64) {
		t.Helper()
		do(&pb.CompactionRequest{Revision: revision, Physical: true})
	}
	compare := func(t *testing.T, from int64) {
		t.Helper()
		hashes := map[uint32]bool{}
		for revision := from - 2; revision <= g.revision+2; revision++ {
			r := &pb.HashKVRequest{Revision: revision}
			want, wantErr := real.send(t, r)
			for _, s := range ours {
				got, gotErr := s.send(t, r)
				if diff := cmp.Diff(wantErr, gotErr); diff != "" {
					t.Fatalf("revision %d: errors differ (- etcd, + %s):\n%s", revision, s.name, diff)
				}
				if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
					t.Fatalf("revision %d: answers differ (- etcd, + %s):\n%s", revision, s.name, diff)
				}
			}
			if wantErr == "" {
				hashes[want.(*pb.HashKVResponse).Hash] = true
			}
		}
		if n := int64(len(hashes)); n < g.revision-from {
			t.Errorf("%d different hashes of %d revisions", n, g.revision-from+1)
		}
	}

	change(250)
	compare(t, 1)
	compacted := g.revision - 50
	compact(compacted)
	change(50)
	real.restart()
	t.Run("Compacted", func(t *testing.T) { compare(t, compacted) })

	compacted = g.revision
	compact(compacted)
	change(50)
	real.restart()
	t.Run("CompactedAgain", func(t *testing.T) { compare(t, compacted) })

	do(&pb.PutRequest{Key: []byte("last")})
	do(&pb.PutRequest{Key: []byte("last but one")})
	do(&pb.DeleteRangeRequest{Key: []byte("last")})
	compacted = g.revision
	compact(compacted)
	do(&pb.DeleteRangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	real.restart()
	t.Run("NoKeyIsLeft", func(t *testing.T) { compare(t, compacted) })

	compacted = g.revision
	compact(compacted)
	real.restart()
	t.Run("NothingIsLeft", func(t *testing.T) { compare(t, compacted) })
}
