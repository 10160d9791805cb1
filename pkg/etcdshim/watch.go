package etcdshim

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/kubase/kubase/pkg/sqlstore"
)

type watchServer struct {
	*server
	pb.UnsafeWatchServer
}

// What a watch that cannot be created is told, in etcd's words.
const (
	emptyRange  = "mvcc: watcher range is empty"
	duplicateID = "mvcc: duplicate watch ID provided on the WatchStream"
	// noWatch is the id in answers that belong to no watch, or to all of them.
	noWatch = -1
)

// watchStream is one gRPC stream with its watches. One goroutine receives requests, one sends what happens, one asks for progress.
type watchStream struct {
	*server
	grpc   pb.Watch_WatchServer
	events *sqlstore.WatchStream

	// mu is held while something is sent, and guards the rest: so the answer that creates a watch goes out before its first
	// event, and none follows the answer that cancels it.
	mu       sync.Mutex
	watches  map[int64]*watch
	watchers map[*sqlstore.Watcher]*watch
	nextID   int64
}

type watch struct {
	id       int64
	watcher  *sqlstore.Watcher
	prevKV   bool
	fragment bool
	progress bool // wants to hear of progress now and then
	quiet    bool // heard of no event since the last tick
}

func (s *watchServer) Watch(stream pb.Watch_WatchServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	ws := &watchStream{
		server: s.server, grpc: stream, events: s.store.NewWatchStream(),
		watches: map[int64]*watch{}, watchers: map[*sqlstore.Watcher]*watch{},
	}
	defer ws.events.Close()
	sending := make(chan error, 1)
	go func() {
		err := ws.sendLoop(ctx)
		cancel()
		sending <- err
	}()
	go ws.progressLoop(ctx)
	err := s.receive(ctx, func() error {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		return ws.handle(r)
	})
	if err == nil {
		// The client has nothing more to ask but still listens.
		select {
		case <-ctx.Done():
		case <-s.stopping.Done():
			err = rpctypes.ErrGRPCStopped
		}
	}
	cancel()
	if sendErr := <-sending; err == nil {
		err = sendErr
	}
	if stream.Context().Err() != nil {
		return rpctypes.ErrGRPCWatchCanceled
	}
	return err
}

func (ws *watchStream) handle(r *pb.WatchRequest) error {
	switch u := r.RequestUnion.(type) {
	case *pb.WatchRequest_CreateRequest:
		if u.CreateRequest != nil {
			return ws.create(u.CreateRequest)
		}
	case *pb.WatchRequest_CancelRequest:
		if u.CancelRequest != nil {
			return ws.cancel(u.CancelRequest.WatchId)
		}
	case *pb.WatchRequest_ProgressRequest:
		ws.events.RequestProgress(nil)
	}
	return nil
}

func (ws *watchStream) create(r *pb.WatchCreateRequest) error {
	key := r.Key
	if len(key) == 0 {
		key = []byte{0} // the smallest key
	}
	_, denied := ws.permitNow(ws.grpc.Context(), mayRange(key, r.RangeEnd))
	if status.Code(denied) == codes.Unavailable {
		return denied // nobody knows
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	bounded := len(r.RangeEnd) > 0 && !bytes.Equal(r.RangeEnd, []byte{0})
	switch {
	case r.StartRevision < 0:
		return ws.refuse(rpctypes.ErrCompacted.Error())
	case denied != nil:
		return ws.refuse(denied.Error())
	case bounded && bytes.Compare(key, r.RangeEnd) >= 0:
		return ws.refuse(emptyRange)
	case r.WatchId != 0 && ws.watches[r.WatchId] != nil:
		return ws.refuse(duplicateID)
	}
	id := r.WatchId
	if id == 0 { // a watch that is refused takes none
		for ws.watches[ws.nextID] != nil {
			ws.nextID++
		}
		id = ws.nextID
		ws.nextID++
	}
	request := sqlstore.WatchRequest{
		KeyRange: keyRange(key, r.RangeEnd), From: sqlstore.Revision(r.StartRevision), Progress: r.ProgressNotify,
	}
	for _, f := range r.Filters {
		switch f {
		case pb.WatchCreateRequest_NOPUT:
			request.NoPut = true
		case pb.WatchCreateRequest_NODELETE:
			request.NoDelete = true
		}
	}
	w := &watch{id: id, prevKV: r.PrevKv, fragment: r.Fragment, progress: r.ProgressNotify, quiet: true}
	var revision sqlstore.Revision
	w.watcher, revision = ws.events.Watch(request)
	ws.watches[id] = w
	ws.watchers[w.watcher] = w
	return ws.grpc.Send(&pb.WatchResponse{Header: ws.header(revision), WatchId: id, Created: true})
}

// refuse answers a watch that is not created. The caller holds mu.
func (ws *watchStream) refuse(reason string) error {
	return ws.grpc.Send(&pb.WatchResponse{
		Header: ws.header(ws.events.Revision()), WatchId: noWatch, Created: true, Canceled: true, CancelReason: reason,
	})
}

func (ws *watchStream) cancel(id int64) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.watches[id]
	if w == nil {
		return nil
	}
	ws.events.Cancel(w.watcher)
	ws.forget(w)
	return ws.grpc.Send(&pb.WatchResponse{Header: ws.header(ws.events.Revision()), WatchId: id, Canceled: true})
}

func (ws *watchStream) forget(w *watch) {
	delete(ws.watches, w.id)
	delete(ws.watchers, w.watcher)
}

func (ws *watchStream) sendLoop(ctx context.Context) error {
	for {
		batch, err := ws.events.Next(ctx)
		if err != nil {
			return err
		}
		if err := ws.send(batch); err != nil {
			return err
		}
	}
}

func (ws *watchStream) send(batch *sqlstore.WatchBatch) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	out := &pb.WatchResponse{Header: ws.header(batch.Revision), WatchId: noWatch}
	if batch.Watcher == nil {
		return ws.grpc.Send(out)
	}
	w := ws.watchers[batch.Watcher]
	if w == nil {
		return nil // cancelled meanwhile
	}
	out.WatchId = w.id
	if batch.CompactRevision != 0 {
		out.Header = ws.header(0) // as etcd
		out.Canceled, out.CompactRevision = true, int64(batch.CompactRevision)
		ws.forget(w)
		return ws.grpc.Send(out)
	}
	if len(batch.Events) == 0 {
		return ws.grpc.Send(out)
	}
	w.quiet = false
	out.Events = make([]*mvccpb.Event, len(batch.Events))
	for i, e := range batch.Events {
		out.Events[i] = event(e, w.prevKV)
	}
	if w.fragment {
		return ws.sendFragments(out)
	}
	return ws.grpc.Send(out)
}

// sendFragments splits an answer that is larger than a request may be on the wire. Every piece but the last is marked, and counts with
// its mark, as in etcd.
func (ws *watchStream) sendFragments(whole *pb.WatchResponse) error {
	most := ws.opts.MaxRequestBytes + requestOverheadBytes
	if proto.Size(whole) < most {
		return ws.grpc.Send(whole)
	}
	for events := whole.Events; len(events) > 0; {
		piece := &pb.WatchResponse{Header: whole.Header, WatchId: whole.WatchId, Fragment: true}
		for size := proto.Size(piece); len(piece.Events) < len(events); {
			next := events[len(piece.Events)]
			size += protowire.SizeTag(eventsField) + protowire.SizeBytes(proto.Size(next))
			if len(piece.Events) > 0 && size >= most {
				break
			}
			piece.Events = append(piece.Events, next)
		}
		events = events[len(piece.Events):]
		piece.Fragment = len(events) > 0
		if err := ws.grpc.Send(piece); err != nil {
			return err
		}
	}
	return nil
}

// eventsField is the number of events in a WatchResponse.
const eventsField = 11

// progressLoop lets watches that asked for it, and had no events for an interval, hear how far they are. Streams tick at slightly
// different times.
func (ws *watchStream) progressLoop(ctx context.Context) {
	interval := ws.opts.WatchProgressInterval
	ticker := time.NewTicker(interval + time.Duration(rand.Int64N(int64(interval)/10+1)))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		ws.mu.Lock()
		for _, w := range ws.watches {
			if w.progress && w.quiet {
				ws.events.RequestProgress(w.watcher)
			}
			w.quiet = true
		}
		ws.mu.Unlock()
	}
}
