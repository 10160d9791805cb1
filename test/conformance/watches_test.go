package conformance

import (
	"context"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

// someWatches makes requests for watches of one stream, with all options and from all revisions but compacted ones: after such a watch etcd
// answers no request for progress on its stream any more.
func (g *generator) someWatches() []*pb.WatchCreateRequest {
	creates := make([]*pb.WatchCreateRequest, 1+g.rnd.IntN(5))
	for i := range creates {
		r := &pb.WatchCreateRequest{Key: g.key(), RangeEnd: g.end(), PrevKv: g.one(2), Fragment: g.one(3), ProgressNotify: g.one(3)}
		switch g.rnd.IntN(5) {
		case 0:
			r.StartRevision = max(g.compactRevision(), g.revision-int64(g.rnd.IntN(300)), 1)
		case 1:
			r.StartRevision = max(g.compactRevision(), 1)
		case 2:
			r.StartRevision = g.revision + int64(g.rnd.IntN(6))
		case 3:
			if g.one(4) {
				r.StartRevision = -1
			}
		}
		if g.one(5) {
			r.Filters = append(r.Filters, pb.WatchCreateRequest_NOPUT)
		}
		if g.one(5) {
			r.Filters = append(r.Filters, pb.WatchCreateRequest_NODELETE)
		}
		if g.one(4) {
			r.WatchId = int64(g.rnd.IntN(4)) // maybe taken
		}
		creates[i] = r
	}
	return creates
}

// seen is what a stream of watches has shown: how events are batched is the server's choice, everything else is not.
type seen struct {
	Created  []proto.Message
	Events   map[int64][]*mvccpb.Event
	Canceled map[int64]proto.Message
}

// watched is a stream of watches on one server.
type watched struct {
	server
	t      *testing.T
	stream pb.Watch_WatchClient
	cancel context.CancelFunc
	seen   seen
	live   map[int64]bool
}

func (s server) openWatches(t *testing.T) *watched {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), operationTimeout)
	stream, err := s.watcher.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &watched{
		server: s, t: t, stream: stream, cancel: cancel, live: map[int64]bool{},
		seen: seen{Events: map[int64][]*mvccpb.Event{}, Canceled: map[int64]proto.Message{}},
	}
}

func (w *watched) send(r *pb.WatchRequest) {
	w.t.Helper()
	if err := w.stream.Send(r); err != nil {
		w.t.Fatalf("%s: %v", w.name, err)
	}
}

// create creates a watch and waits for the answer.
func (w *watched) create(r *pb.WatchCreateRequest) {
	w.t.Helper()
	n := len(w.seen.Created)
	w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}})
	w.receive(func(*pb.WatchResponse) bool { return len(w.seen.Created) > n })
}

// end cancels a watch and waits for the answer.
func (w *watched) end(id int64) {
	w.t.Helper()
	w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}})
	w.receive(func(*pb.WatchResponse) bool { return !w.live[id] })
}

// progress waits until all watches have seen a revision. It asks again and again: etcd forgets a request that comes while a watch
// catches up.
func (w *watched) progress(through int64) {
	w.t.Helper()
	if len(w.live) == 0 {
		return // nothing is answered then
	}
	asking, stop := context.WithCancel(w.stream.Context())
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		askForProgress(asking, w.stream)
	}()
	w.receive(func(r *pb.WatchResponse) bool {
		return r.WatchId == -1 && !r.Created && !r.Canceled && r.Header.Revision >= through
	})
	stop()
	<-asked
}

func (w *watched) receive(until func(*pb.WatchResponse) bool) {
	w.t.Helper()
	for {
		r, err := w.stream.Recv()
		if err != nil {
			w.t.Fatalf("%s: %v, after %v", w.name, err, w.seen)
		}
		id, answer := r.WatchId, proto.Clone(r)
		forgetIDs(answer)
		switch {
		case r.Created:
			w.seen.Created = append(w.seen.Created, answer)
			if !r.Canceled {
				w.live[id] = true
			}
		case r.Canceled:
			w.seen.Canceled[id] = answer
			delete(w.live, id)
		case len(r.Events) > 0: // when there is progress without being asked for is the server's choice
			w.seen.Events[id] = append(w.seen.Events[id], r.Events...)
		}
		if until(r) {
			return
		}
	}
}

// compareWatches opens a stream on both servers, changes something, and compares what the watches show.
func (d *difference) compareWatches() {
	d.Helper()
	creates := d.g.someWatches()
	streams := []*watched{d.real.openWatches(d.T), d.ours.openWatches(d.T)}
	for _, w := range streams {
		defer w.cancel()
		for _, r := range creates {
			w.create(r)
		}
	}
	for _, r := range creates {
		d.reach(r.StartRevision)
	}
	for _, w := range streams {
		w.progress(d.g.revision)
	}
	for range d.g.rnd.IntN(6) {
		if r := d.g.request(); !isCompaction(r) {
			d.compare(r)
		}
	}
	for _, w := range streams {
		w.progress(d.g.revision)
		ids := make([]int64, 0, len(w.live))
		for id := range w.live {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		for _, id := range ids {
			w.end(id)
		}
	}
	if diff := gocmp.Diff(streams[0].seen, streams[1].seen, protocmp.Transform()); diff != "" {
		d.Fatalf("step %d: watches %v differ (- etcd, + kubase):\n%s", d.steps, creates, diff)
	}
}

// compareCompactedWatch watches from a compacted revision.
func (d *difference) compareCompactedWatch() {
	d.Helper()
	compact := d.g.compactRevision()
	if compact < 2 {
		return
	}
	create := &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: 1 + d.g.rnd.Int64N(compact-1)}
	streams := []*watched{d.real.openWatches(d.T), d.ours.openWatches(d.T)}
	for _, w := range streams {
		defer w.cancel()
		w.create(create)
		if len(w.seen.Canceled) == 0 {
			w.receive(func(r *pb.WatchResponse) bool { return r.Canceled })
		}
	}
	if diff := gocmp.Diff(streams[0].seen, streams[1].seen, protocmp.Transform()); diff != "" {
		d.Fatalf("step %d: watches %v differ (- etcd, + kubase):\n%s", d.steps, create, diff)
	}
}

// compactRevision is 0 if nothing was compacted.
func (g *generator) compactRevision() int64 {
	var newest int64
	for revision := range g.compacted {
		newest = max(newest, revision)
	}
	return newest
}

func isCompaction(r proto.Message) bool {
	_, ok := r.(*pb.CompactionRequest)
	return ok
}

func isAlarm(r proto.Message) bool {
	_, ok := r.(*pb.AlarmRequest)
	return ok
}

// TestFutureWatchHoldsUpProgress asks for progress while a watch of the stream begins in the future.
func TestFutureWatchHoldsUpProgress(t *testing.T) {
	for _, s := range []server{startEtcd(t, nil).server, startKubase(t, "sqlite"), startKubase(t, "postgres")} {
		t.Run(s.name, func(t *testing.T) {
			w := s.openWatches(t)
			defer w.cancel()
			const start = 4
			w.create(&pb.WatchCreateRequest{Key: []byte("k")})
			w.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: start})
			for revision := int64(2); revision <= start; revision++ {
				w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
				if _, err := s.send(t, &pb.PutRequest{Key: []byte("k")}); err != "" {
					t.Fatal(err)
				}
				w.receive(func(r *pb.WatchResponse) bool {
					if len(r.Events) == 0 && r.Header.Revision < start {
						t.Errorf("there is progress at revision %d", r.Header.Revision)
					}
					return len(r.Events) > 0
				})
			}
			w.progress(start)
		})
	}
}

// TestFragments watches a revision that is larger than an answer should be: its events come in pieces.
func TestFragments(t *testing.T) {
	for _, s := range []server{startEtcd(t, nil).server, startKubase(t, "sqlite"), startKubase(t, "postgres")} {
		t.Run(s.name, func(t *testing.T) {
			const keys, each = 3, 450 << 10
			revision := int64(0)
			for range 2 { // the second time with previous values
				txn := &pb.TxnRequest{}
				for i := range keys {
					txn.Success = append(txn.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
						RequestPut: &pb.PutRequest{Key: []byte{'a' + byte(i)}, Value: make([]byte, each)},
					}})
				}
				answer, err := s.send(t, txn)
				if err != "" {
					t.Fatal(err)
				}
				revision = answer.(*pb.TxnResponse).Header.Revision
			}
			w := s.openWatches(t)
			defer w.cancel()
			w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
				Key: []byte("a"), RangeEnd: []byte("z"), StartRevision: revision, Fragment: true, PrevKv: true,
			}}})
			var marks []bool
			w.receive(func(r *pb.WatchResponse) bool {
				if len(r.Events) > 0 {
					marks = append(marks, r.Fragment)
				}
				if size := proto.Size(r); size > 2<<20 {
					t.Errorf("a piece has %d bytes", size)
				}
				return len(w.seen.Events[r.WatchId]) == keys
			})
			if !slices.Equal(marks, []bool{true, false}) {
				t.Errorf("pieces that say that others follow: %v", marks)
			}
		})
	}
}
