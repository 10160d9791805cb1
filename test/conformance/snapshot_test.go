package conformance

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

// TestSnapshotIsEtcds restores a snapshot with etcdutl and lets a real etcd serve it: everything is as it is in kubase.
func TestSnapshotIsEtcds(t *testing.T) {
	for _, engine := range []string{"sqlite", "postgres"} {
		t.Run(engine, func(t *testing.T) {
			for name, c := range map[string]struct{ changes, compact, more int }{
				"Empty":             {},
				"Compacted":         {changes: 300, compact: 100, more: 100},
				"CompactedToTheEnd": {changes: 100, compact: 1000},
				"NeverCompacted":    {changes: 100},
			} {
				t.Run(name, func(t *testing.T) {
					ours := startKubase(t, engine)
					g := newGenerator(rand.NewPCG(*seed, 2))
					change := func(n int) {
						for range n {
							r := g.request()
							if isCompaction(r) || isAlarm(r) {
								continue
							}
							if answer, err := ours.send(t, r); err == "" {
								g.learn(r, answer)
							}
						}
					}
					change(c.changes)
					if c.compact > 0 {
						if _, err := ours.send(t, &pb.CompactionRequest{Revision: min(int64(c.compact), g.revision)}); err != "" {
							t.Fatal(err)
						}
					}
					change(c.more)
					for _, r := range []proto.Message{
						&pb.LeaseGrantRequest{ID: 77, TTL: 5000}, &pb.PutRequest{Key: []byte("leased"), Lease: 77}, &pb.AlarmRequest{},
					} {
						answer, err := ours.send(t, r)
						if err != "" {
							t.Fatalf("%v: %s", r, err)
						}
						g.learn(r, answer)
					}
					restored := restoreSnapshot(t, ours)
					for _, r := range stateRequests(g.revision) {
						want, wantErr := ours.send(t, r)
						got, gotErr := restored.send(t, r)
						if diff := cmp.Diff(wantErr, gotErr); diff != "" {
							t.Fatalf("%T %v: errors differ (- kubase, + etcd):\n%s", r, r, diff)
						}
						if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
							t.Fatalf("%T %v: answers differ (- kubase, + etcd):\n%s", r, r, diff)
						}
					}
				})
			}
		})
	}
}

// stateRequests ask for all there is of a store: every state and every hash of history, and the leases.
func stateRequests(current int64) []proto.Message {
	requests := []proto.Message{&pb.LeaseLeasesRequest{}, &pb.LeaseTimeToLiveRequest{ID: 77, Keys: true}}
	for revision := range current + 2 {
		requests = append(requests, &pb.HashKVRequest{Revision: revision},
			&pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, Revision: revision})
	}
	return requests
}

// restoreSnapshot takes a snapshot, restores it with etcdutl and starts an etcd on it.
func restoreSnapshot(t *testing.T, from server) *etcd {
	t.Helper()
	path := filepath.Join(t.TempDir(), "snapshot.db")
	saveSnapshot(t, from, path)
	etcdutl := snapshot.NewV3(zap.NewNop())
	status, err := etcdutl.Status(path) // checks the file
	if err != nil {
		t.Fatal(err)
	}
	if status.Version != "3.7.0" {
		t.Errorf("the snapshot has version %q", status.Version)
	}
	return startEtcd(t, func(config *embed.Config) {
		if err := etcdutl.Restore(snapshot.RestoreConfig{
			SnapshotPath: path, Name: config.Name, OutputDataDir: config.Dir, PeerURLs: []string{config.AdvertisePeerUrls[0].String()},
			InitialCluster: config.InitialCluster, InitialClusterToken: config.InitialClusterToken,
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func saveSnapshot(t *testing.T, from server, path string) {
	t.Helper()
	stream, err := from.maintenance.Snapshot(t.Context(), &pb.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			_, err = file.Write(piece.Blob)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}
