package conformance

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/apiserver/pkg/storage/etcd3/testserver"

	kubase "github.com/kubase/kubase/test/conformance/testserver"
	"github.com/kubase/kubase/test/postgrestest"
)

var (
	seed       = flag.Uint64("seed", 20261130, "seed of the differential test; 0 chooses one")
	operations = flag.Int("operations", 1500, "operations of the differential test on each engine")
)

func TestMain(m *testing.M) { os.Exit(postgrestest.Run(m)) }

// TestSameAnswersAsEtcd sends the same random requests to a real etcd and to kubase: answers, errors and what watches see must be
// the same but for ids of cluster and member and what only raft knows.
func TestSameAnswersAsEtcd(t *testing.T) {
	for _, engine := range []string{"sqlite", "postgres"} {
		t.Run(engine, func(t *testing.T) {
			t.Setenv(kubase.EngineVariable, engine)
			chosen := *seed
			if chosen == 0 {
				chosen = rand.Uint64()
			}
			t.Logf("-seed=%d", chosen)
			real, ours := connectTo(t, "etcd", testserver.RunEtcd(t, nil)), connectTo(t, engine, kubase.RunEtcd(t, nil))
			g := &generator{rnd: rand.New(rand.NewPCG(chosen, 0)), revision: 1}
			watches := g.watches()
			realEvents, ourEvents := real.watch(t, watches), ours.watch(t, watches)
			for i := range *operations {
				r := g.request()
				want, wantErr := real.send(t, r)
				got, gotErr := ours.send(t, r)
				if diff := gocmp.Diff(wantErr, gotErr); diff != "" {
					t.Fatalf("operation %d, %T %v: errors differ (- etcd, + kubase):\n%s", i, r, r, diff)
				}
				if diff := gocmp.Diff(want, got, protocmp.Transform()); diff != "" {
					t.Fatalf("operation %d, %T %v: answers differ (- etcd, + kubase):\n%s", i, r, r, diff)
				}
				g.learn(want)
			}
			for i := range watches {
				want, got := realEvents(i, g.revision), ourEvents(i, g.revision)
				if diff := gocmp.Diff(want, got, protocmp.Transform()); diff != "" {
					t.Errorf("watch %d, %v: events differ (- etcd, + kubase):\n%s", i, watches[i], diff)
				}
			}
		})
	}
}

// server is one side.
type server struct {
	name    string
	kv      pb.KVClient
	lease   pb.LeaseClient
	watcher pb.WatchClient

	conn        *grpc.ClientConn
	maintenance pb.MaintenanceClient
	cluster     pb.ClusterClient
}

func connectTo(t *testing.T, name string, client *kubernetes.Client) server {
	t.Cleanup(func() { _ = client.Close() }) // the server may be gone already
	return newServer(name, client.ActiveConnection())
}

func newServer(name string, conn *grpc.ClientConn) server {
	return server{
		name: name, conn: conn, kv: pb.NewKVClient(conn), lease: pb.NewLeaseClient(conn), watcher: pb.NewWatchClient(conn),
		maintenance: pb.NewMaintenanceClient(conn), cluster: pb.NewClusterClient(conn),
	}
}

const operationTimeout = 30 * time.Second

// send returns the answer without what may differ, and the error as a client sees it.
func (s server) send(t *testing.T, r proto.Message) (proto.Message, string) {
	ctx, cancel := context.WithTimeout(t.Context(), operationTimeout)
	defer cancel()
	var answer proto.Message
	var err error
	switch r := r.(type) {
	case *pb.RangeRequest:
		answer, err = s.kv.Range(ctx, r)
	case *pb.PutRequest:
		answer, err = s.kv.Put(ctx, r)
	case *pb.DeleteRangeRequest:
		answer, err = s.kv.DeleteRange(ctx, r)
	case *pb.TxnRequest:
		answer, err = s.kv.Txn(ctx, r)
	case *pb.CompactionRequest:
		answer, err = s.kv.Compact(ctx, r)
	case *pb.LeaseGrantRequest:
		answer, err = s.lease.LeaseGrant(ctx, r)
	case *pb.LeaseRevokeRequest:
		answer, err = s.lease.LeaseRevoke(ctx, r)
	case *pb.LeaseTimeToLiveRequest:
		answer, err = s.lease.LeaseTimeToLive(ctx, r)
	case *pb.LeaseLeasesRequest:
		answer, err = s.lease.LeaseLeases(ctx, r)
	case *pb.MemberAddRequest:
		answer, err = s.cluster.MemberAdd(ctx, r)
	case *pb.MemberRemoveRequest:
		answer, err = s.cluster.MemberRemove(ctx, r)
	case *pb.MemberUpdateRequest:
		answer, err = s.cluster.MemberUpdate(ctx, r)
	case *pb.MemberPromoteRequest:
		answer, err = s.cluster.MemberPromote(ctx, r)
	case *pb.AlarmRequest:
		answer, err = s.maintenance.Alarm(ctx, r)
	case *pb.DefragmentRequest:
		answer, err = s.maintenance.Defragment(ctx, r)
	case *pb.MoveLeaderRequest:
		answer, err = s.maintenance.MoveLeader(ctx, r)
	case *pb.DowngradeRequest:
		answer, err = s.maintenance.Downgrade(ctx, r)
	case *pb.HashKVRequest:
		answer, err = s.maintenance.HashKV(ctx, r)
	default:
		t.Fatalf("no way to send a %T", r)
	}
	if err != nil {
		return nil, fmt.Sprintf("%s: %s", status.Code(err), status.Convert(err).Message())
	}
	forgetChance(answer)
	forgetIDs(answer)
	return answer, ""
}

// forgetIDs takes out of an answer what differs from server to server.
func forgetIDs(answer proto.Message) {
	if h := answer.(interface{ GetHeader() *pb.ResponseHeader }).GetHeader(); h != nil {
		h.ClusterId, h.MemberId, h.RaftTerm = 0, 0, 0
	}
}

// forgetChance makes answers alike that differ for no reason: leases come in any order, and time goes by.
func forgetChance(answer proto.Message) {
	switch a := answer.(type) {
	case *pb.LeaseLeasesResponse:
		slices.SortFunc(a.Leases, func(x, y *pb.LeaseStatus) int { return cmp.Compare(x.ID, y.ID) })
	case *pb.LeaseTimeToLiveResponse:
		if a.TTL > 0 {
			a.TTL = a.GrantedTTL
		}
		slices.SortFunc(a.Keys, bytes.Compare)
	}
}

// watch starts watches and returns what waits until one of them has seen a revision, and returns its events.
func (s server) watch(t *testing.T, creates []*pb.WatchCreateRequest) func(i int, through int64) []*pb.WatchResponse {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	streams := make([]pb.Watch_WatchClient, len(creates))
	for i, create := range creates {
		stream, err := s.watcher.Watch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
			t.Fatal(err)
		}
		if created, err := stream.Recv(); err != nil || !created.Created {
			t.Fatalf("creating a watch: %v, %v", created, err)
		}
		streams[i] = stream
	}
	return func(i int, through int64) []*pb.WatchResponse {
		timer := time.AfterFunc(operationTimeout, cancel)
		defer timer.Stop()
		// Asked again and again: etcd forgets a request for progress that comes while a watch catches up.
		asking, stop := context.WithCancel(ctx)
		defer stop()
		go askForProgress(asking, streams[i])
		all := &pb.WatchResponse{}
		for {
			response, err := streams[i].Recv()
			if err == nil && response.Canceled {
				err = fmt.Errorf("canceled: %v", response)
			}
			if err != nil {
				t.Fatalf("%s: watch %d has seen %d events and not revision %d: %v", s.name, i, len(all.Events), through, err)
			}
			all.Events = append(all.Events, response.Events...) // how they are batched is the server's choice
			if len(response.Events) == 0 && response.Header.Revision >= through {
				return []*pb.WatchResponse{all}
			}
		}
	}
}

func askForProgress(ctx context.Context, stream pb.Watch_WatchClient) {
	request := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for stream.Send(request) == nil {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
