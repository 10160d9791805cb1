package etcdshim_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubase/kubase/pkg/etcdshim"
)

// stream is a watch stream in a test that must not wait for ever.
type stream struct {
	t *testing.T
	pb.Watch_WatchClient
}

func (a api) stream(t *testing.T) stream {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	s, err := a.watch.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return stream{t, s}
}

func (s stream) create(r *pb.WatchCreateRequest) {
	s.t.Helper()
	s.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}})
}

func (s stream) send(r *pb.WatchRequest) {
	s.t.Helper()
	if err := s.Send(r); err != nil {
		s.t.Fatal(err)
	}
}

func (s stream) recv() *pb.WatchResponse {
	s.t.Helper()
	r, err := s.Recv()
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s stream) progress() {
	s.t.Helper()
	s.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
}

func TestWatchIDs(t *testing.T) {
	a := serve(t, etcdshim.Options{})
	s := a.stream(t)
	for _, c := range []struct {
		name     string
		create   *pb.WatchCreateRequest
		id       int64
		canceled bool
		reason   string
	}{
		{"first", &pb.WatchCreateRequest{Key: []byte("a")}, 0, false, ""},
		{"given", &pb.WatchCreateRequest{Key: []byte("a"), WatchId: 1}, 1, false, ""},
		{"next skips one in use", &pb.WatchCreateRequest{Key: []byte("a")}, 2, false, ""},
		{"duplicate", &pb.WatchCreateRequest{Key: []byte("a"), WatchId: 1}, -1, true, "mvcc: duplicate watch ID provided on the WatchStream"},
		{"empty range", &pb.WatchCreateRequest{Key: []byte("b"), RangeEnd: []byte("a")}, -1, true, "mvcc: watcher range is empty"},
		{"negative start", &pb.WatchCreateRequest{Key: []byte("a"), StartRevision: -1}, -1, true, "etcdserver: mvcc: required revision has been compacted"},
	} {
		s.create(c.create)
		r := s.recv()
		if !r.Created || r.WatchId != c.id || r.Canceled != c.canceled || r.CancelReason != c.reason {
			t.Errorf("%s: got %v", c.name, r)
		}
	}
	s.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: 1}}})
	if r := s.recv(); !r.Canceled || r.WatchId != 1 || r.Created {
		t.Errorf("cancel: got %v", r)
	}
	a.put(t, "a", "1")
	seen := map[int64]bool{s.recv().WatchId: true, s.recv().WatchId: true}
	if !seen[0] || !seen[2] {
		t.Errorf("events came for the watches %v, want 0 and 2", seen)
	}
}

func TestWatchPrevKVAndFilters(t *testing.T) {
	a := serve(t, etcdshim.Options{})
	a.put(t, "a", "1")
	a.put(t, "a", "2")
	if _, err := a.kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("a")}); err != nil {
		t.Fatal(err)
	}
	s := a.stream(t)
	s.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: 2, PrevKv: true})
	s.recv()
	events := s.recv().Events
	if len(events) != 3 {
		t.Fatalf("got %v, want three events", events)
	}
	if events[0].PrevKv != nil || string(events[1].PrevKv.Value) != "1" || string(events[2].PrevKv.Value) != "2" {
		t.Errorf("previous values are wrong: %v", events)
	}
	if events[2].Type != mvccpb.Event_DELETE || events[2].Kv.ModRevision != 4 || events[2].Kv.Version != 0 {
		t.Errorf("the delete event is %v", events[2])
	}
	s.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: 2, Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}})
	s.recv()
	if events := s.recv().Events; len(events) != 1 || events[0].Type != mvccpb.Event_DELETE || events[0].PrevKv != nil {
		t.Errorf("without puts: got %v", events)
	}
}

func TestWatchCompacted(t *testing.T) {
	a := serve(t, etcdshim.Options{})
	for range 5 {
		a.put(t, "a", "1")
	}
	if _, err := a.kv.Compact(t.Context(), &pb.CompactionRequest{Revision: 4, Physical: true}); err != nil {
		t.Fatal(err)
	}
	s := a.stream(t)
	s.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: 3})
	if r := s.recv(); !r.Created || r.Canceled {
		t.Fatalf("got %v, want a watch that is created first", r)
	}
	if r := s.recv(); !r.Canceled || r.CompactRevision != 4 {
		t.Errorf("got %v, want canceled at compact revision 4", r)
	}
	s.create(&pb.WatchCreateRequest{Key: []byte("a"), StartRevision: 4})
	s.recv()
	if r := s.recv(); len(r.Events) != 3 || r.Events[0].Kv.ModRevision != 4 {
		t.Errorf("from the compact revision: got %v", r)
	}
}

// Progress is for all watches of the stream at once, and comes after all events up to its revision.
func TestWatchProgress(t *testing.T) {
	a := serve(t, etcdshim.Options{})
	s := a.stream(t)
	s.create(&pb.WatchCreateRequest{Key: []byte("a")})
	s.recv()
	for range 100 {
		a.put(t, "a", "1")
	}
	revision := a.put(t, "z", "1") // nobody watches it
	s.progress()
	events := 0
	for {
		r := s.recv()
		events += len(r.Events)
		if len(r.Events) > 0 {
			continue
		}
		if r.WatchId != -1 || r.Header.Revision != revision || events != 100 {
			t.Errorf("got progress %v after %d events, want for watch -1 at %d after 100", r, events, revision)
		}
		return
	}
}

// Who reads a key that is not there, as the API server does to learn the current revision, makes the watches of what lies below it tell
// how far they are: only those that want to know, and only what they have not told yet.
func TestWatchProgressAfterRead(t *testing.T) {
	a := serve(t, etcdshim.Options{})
	quiet, s := a.stream(t), a.stream(t)
	quiet.create(&pb.WatchCreateRequest{Key: []byte("a/"), RangeEnd: []byte("a0")})
	quiet.recv()
	s.create(&pb.WatchCreateRequest{Key: []byte("a/"), RangeEnd: []byte("a0"), ProgressNotify: true})
	s.recv()
	read := func() {
		if _, err := a.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("a")}); err != nil {
			t.Fatal(err)
		}
	}
	revision := a.put(t, "z", "1")
	read()
	if r := s.recv(); len(r.Events) != 0 || r.Header.Revision != revision {
		t.Errorf("got %v, want progress at %d", r, revision)
	}
	read() // has nothing new to tell
	revision = a.put(t, "a/1", "1")
	for _, s := range []stream{quiet, s} {
		if r := s.recv(); len(r.Events) != 1 || r.Header.Revision != revision {
			t.Errorf("got %v, want the event at %d", r, revision)
		}
	}
}

func TestWatchPeriodicProgress(t *testing.T) {
	a := serve(t, etcdshim.Options{WatchProgressInterval: 20 * time.Millisecond})
	s := a.stream(t)
	s.create(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: 7, ProgressNotify: true})
	s.recv()
	revision := a.put(t, "z", "1")
	for {
		r := s.recv()
		if r.WatchId != 7 || len(r.Events) != 0 {
			t.Fatalf("got %v, want progress of watch 7", r)
		}
		if r.Header.Revision == revision {
			return
		}
	}
}

func TestWatchFragments(t *testing.T) {
	a := serve(t, etcdshim.Options{MaxRequestBytes: 100 << 10})
	value := strings.Repeat("v", 90<<10)
	for i := range 10 {
		a.put(t, fmt.Sprintf("a%d", i), value)
	}
	del, err := a.kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("a"), RangeEnd: []byte("b")})
	if err != nil {
		t.Fatal(err)
	}
	s := a.stream(t)
	s.create(&pb.WatchCreateRequest{Key: []byte("a"), RangeEnd: []byte("b"), StartRevision: del.Header.Revision, PrevKv: true, Fragment: true})
	s.recv()
	events, pieces := 0, 0
	for {
		r := s.recv()
		pieces++
		events += len(r.Events)
		if !r.Fragment {
			break
		}
	}
	if events != 10 || pieces < 2 {
		t.Errorf("got %d events in %d pieces, want 10 in several", events, pieces)
	}
}

func TestShutdownEndsWatches(t *testing.T) {
	a := serve(t, etcdshim.Options{})
	s := a.stream(t)
	s.create(&pb.WatchCreateRequest{Key: []byte("a")})
	s.recv()
	a.server.Shutdown(t.Context())
	if _, err := s.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, want Unavailable, on which clients resume", err)
	}
}
