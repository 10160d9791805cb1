package conformance

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/apiserver/pkg/storage/etcd3/testserver"

	"github.com/kubase/kubase/test/postgrestest"
)

var (
	seed       = flag.Uint64("seed", 20261130, "seed of the differential test; 0 chooses one")
	operations = flag.Int("operations", 1500, "operations of the differential test on each engine")
)

func TestMain(m *testing.M) { os.Exit(postgrestest.Run(m)) }

// TestSameAnswersAsEtcd sends the same random requests, of all services, to a real etcd and to kubase: answers, errors and what watches
// see must be the same but for ids of cluster and member and what only raft knows.
func TestSameAnswersAsEtcd(t *testing.T) {
	for _, engine := range []string{"sqlite", "postgres"} {
		t.Run(engine, func(t *testing.T) {
			chosen := *seed
			if chosen == 0 {
				chosen = rand.Uint64()
			}
			t.Logf("-seed=%d", chosen)
			compareServers(t, engine, rand.NewPCG(chosen, 0), func(steps int) bool { return steps < *operations })
		})
	}
}

// FuzzSameAnswersAsEtcd is the same with requests that the input chooses.
func FuzzSameAnswersAsEtcd(f *testing.F) {
	f.Add([]byte(strings.Repeat("What is chosen here decides what is put, read and deleted, and by whom it is watched. ", 20)))
	f.Fuzz(func(t *testing.T, data []byte) {
		source := &input{data: data, rest: rand.NewPCG(0, 0)}
		compareServers(t, "sqlite", source, func(int) bool { return len(source.data) > 0 })
	})
}

// input is a source of random numbers that are chosen, as long as there are any.
type input struct {
	data []byte
	rest rand.Source // to end what was begun
}

func (s *input) Uint64() uint64 {
	if len(s.data) == 0 {
		return s.rest.Uint64()
	}
	var number [8]byte
	s.data = s.data[copy(number[:], s.data):]
	return binary.BigEndian.Uint64(number[:])
}

// difference looks for one between two servers.
type difference struct {
	*testing.T
	real, ours server
	g          *generator
	steps      int
}

func compareServers(t *testing.T, engine string, source rand.Source, more func(steps int) bool) {
	d := &difference{
		T: t, real: connectTo(t, "etcd", testserver.RunEtcd(t, nil)), ours: startKubase(t, engine),
		g: newGenerator(source),
	}
	watches := d.g.watches()
	realEvents, ourEvents := d.real.watch(t, watches), d.ours.watch(t, watches)
	for ; more(d.steps); d.steps++ {
		switch n := d.g.rnd.IntN(100); {
		case n < 2:
			d.compareWatches()
		case n < 3:
			d.compareCompactedWatch()
		case n < 6:
			d.compareHashes()
		default:
			d.compare(d.g.request())
		}
	}
	for _, w := range watches {
		d.reach(w.StartRevision)
	}
	for i := range watches {
		want, got := realEvents(i, d.g.revision), ourEvents(i, d.g.revision)
		if diff := gocmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("watch %d, %v: events differ (- etcd, + kubase):\n%s", i, watches[i], diff)
		}
	}
}

// compare sends a request to both.
func (d *difference) compare(r proto.Message) {
	d.Helper()
	want, wantErr := d.real.send(d.T, r)
	got, gotErr := d.ours.send(d.T, r)
	if diff := gocmp.Diff(wantErr, gotErr); diff != "" {
		d.Fatalf("step %d, %T %v: errors differ (- etcd, + kubase):\n%s", d.steps, r, r, diff)
	}
	if diff := gocmp.Diff(want, got, protocmp.Transform()); diff != "" {
		d.Fatalf("step %d, %T %v: answers differ (- etcd, + kubase):\n%s", d.steps, r, r, diff)
	}
	if wantErr == "" {
		d.g.learn(r, want)
	}
}

// reach goes on to a revision: before that, a watch from there holds up progress.
func (d *difference) reach(revision int64) {
	d.Helper()
	if a := d.g.alarm; a != nil {
		d.compare(&pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: a.MemberID, Alarm: a.Alarm})
	}
	for d.g.revision < revision {
		d.compare(&pb.PutRequest{Key: []byte("a")})
	}
}

// compareHashes asks for hashes of revisions but those of compactions, for which etcd answers from memory what it was before, and those in
// which a key was changed twice. While a compaction is under way and no key is left, etcd's hash depends on how far it is; one that is refused waits for it.
func (d *difference) compareHashes() {
	d.Helper()
	d.compare(&pb.CompactionRequest{Revision: 1, Physical: true})
	for range 3 {
		r := &pb.HashKVRequest{Revision: d.g.someRevision()}
		if d.g.one(4) {
			r.Revision = 0
		}
		asked := r.Revision
		if asked == 0 {
			asked = d.g.revision
		}
		if !d.g.compacted[asked] && !d.g.twice[asked] {
			d.compare(r)
		}
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
	case *pb.LeaseKeepAliveRequest:
		answer, err = s.keepAlive(ctx, r)
	case *pb.StatusRequest:
		answer, err = s.maintenance.Status(ctx, r)
	case *pb.MemberListRequest:
		answer, err = s.cluster.MemberList(ctx, r)
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
	case *pb.AlarmResponse:
		slices.SortFunc(a.Alarms, func(x, y *pb.AlarmMember) int {
			return cmp.Or(cmp.Compare(x.MemberID, y.MemberID), cmp.Compare(x.Alarm, y.Alarm))
		})
	case *pb.StatusResponse: // sizes, and what raft knows
		a.DbSize, a.DbSizeInUse, a.DbSizeQuota, a.Leader, a.RaftIndex, a.RaftAppliedIndex, a.RaftTerm = 0, 0, 0, 0, 0, 0, 0
		a.StorageVersion = "" // etcd writes it seconds after its start
		slices.Sort(a.Errors)
	case *pb.MemberListResponse:
		for _, m := range a.Members {
			m.ID, m.Name, m.PeerURLs, m.ClientURLs = 0, "", nil, nil
		}
	}
}

// keepAlive renews a lease once.
func (s server) keepAlive(ctx context.Context, r *pb.LeaseKeepAliveRequest) (*pb.LeaseKeepAliveResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.lease.LeaseKeepAlive(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(r); err != nil {
		return nil, err
	}
	return stream.Recv()
}

// watch starts watches and returns what waits until one of them has seen a revision, and returns its events.
func (s server) watch(t *testing.T, creates []*pb.WatchCreateRequest) func(i int, through int64) []*mvccpb.Event {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	taken := make([]*taker, len(creates))
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
		taken[i] = &taker{stream: stream, changed: make(chan struct{}, 1)}
		go taken[i].take()
	}
	return func(i int, through int64) []*mvccpb.Event {
		timer := time.NewTimer(operationTimeout)
		defer timer.Stop()
		// Asked again and again: etcd forgets a request for progress that comes while a watch catches up.
		asking, stop := context.WithCancel(ctx)
		defer stop()
		go askForProgress(asking, taken[i].stream)
		for {
			events, reached, err := taken[i].state()
			if reached >= through {
				return events
			}
			if err != nil {
				t.Fatalf("%s: watch %d has seen %d events and not revision %d: %v", s.name, i, len(events), through, err)
			}
			select {
			case <-taken[i].changed:
			case <-timer.C:
				t.Fatalf("%s: watch %d has seen %d events and not revision %d in time", s.name, i, len(events), through)
			}
		}
	}
}

// taker takes what a watch sees as it comes: what is not taken waits in history, where a compaction can overtake it.
type taker struct {
	stream  pb.Watch_WatchClient
	changed chan struct{}

	mu      sync.Mutex // guards what is below
	events  []*mvccpb.Event
	reached int64
	err     error
}

func (w *taker) take() {
	for w.note(w.stream.Recv()) {
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
	close(w.changed)
}

func (w *taker) note(response *pb.WatchResponse, err error) (more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil && response.Canceled {
		err = fmt.Errorf("canceled: %v", response)
	}
	if err != nil {
		w.err = err
		return false
	}
	w.events = append(w.events, response.Events...) // how they are batched is the server's choice
	if len(response.Events) == 0 {
		w.reached = response.Header.Revision
	}
	return true
}

func (w *taker) state() (events []*mvccpb.Event, reached int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events), w.reached, w.err
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
