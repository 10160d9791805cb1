package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// player sends the requests of a script.
type player struct {
	t        *testing.T
	ctx      context.Context
	conn     *grpc.ClientConn
	revision int64 // the newest that an answer has shown
	watches  map[string]*watchStream
	tokens   map[string]string // by user
}

// watchStream is a stream of watches. It is read in the background, so that a request for progress can be repeated: etcd forgets one that
// comes while a watch catches up.
type watchStream struct {
	pb.Watch_WatchClient
	answers chan *pb.WatchResponse
	err     error // once answers is closed
}

// play sends a request and returns the answer as it stands in a script.
func (p *player) play(s step) string {
	ctx, cancel := context.WithTimeout(p.ctx, operationTimeout)
	defer cancel()
	request := strings.TrimSpace(s.request)
	stream := p.ctx // outlives the request
	if user, rest := cutWord(request); strings.HasPrefix(user, "@") {
		token := p.tokens[user[1:]]
		ctx = metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token)
		stream = metadata.AppendToOutgoingContext(stream, rpctypes.TokenFieldNameGRPC, token)
		request = rest
	}
	name, text := cutWord(request)
	var answers []proto.Message
	var err error
	switch name {
	case "Watch":
		name, text = cutWord(text)
		r := &pb.WatchRequest{}
		p.parse(s, text, r)
		answers, err = p.watch(stream, name, r)
	case "Events":
		name, text = cutWord(text)
		n, parseErr := strconv.Atoi(text)
		if parseErr != nil || p.watches[name] == nil {
			p.t.Fatalf("line %d: want the name of a stream and a number of events", s.line)
		}
		answers, err = p.events(p.watches[name], n)
	default:
		method := p.method(s, name)
		r := newMessage(p.t, method.Input())
		p.parse(s, text, r)
		answers, err = p.call(ctx, method, r)
		p.remember(r, answers)
	}
	if err != nil {
		e := status.Convert(err)
		return fmt.Sprintf("%serror: %s: %s\n", p.format(answers), e.Code(), e.Message())
	}
	return p.format(answers)
}

func cutWord(text string) (word, rest string) {
	word = strings.Fields(text)[0]
	return word, strings.TrimSpace(strings.TrimPrefix(text, word))
}

func (p *player) format(answers []proto.Message) string {
	var out strings.Builder
	for i, answer := range answers {
		if i > 0 {
			out.WriteString("--\n")
		}
		if h, ok := answer.(interface{ GetHeader() *pb.ResponseHeader }); ok {
			p.revision = max(p.revision, h.GetHeader().GetRevision())
		}
		if text := format(answer.ProtoReflect(), "\n"); text != "" {
			out.WriteString(text + "\n")
		}
	}
	return out.String()
}

func (p *player) parse(s step, text string, r proto.Message) {
	if err := prototext.Unmarshal([]byte(expand(text)), r); err != nil {
		p.t.Fatalf("line %d: %v", s.line, err)
	}
}

// method finds the RPC of a name, which is unique among etcd's services.
func (p *player) method(s step, name string) protoreflect.MethodDescriptor {
	services := pb.File_rpc_proto.Services()
	for i := range services.Len() {
		if m := services.Get(i).Methods().ByName(protoreflect.Name(name)); m != nil {
			return m
		}
	}
	p.t.Fatalf("line %d: there is no RPC %q", s.line, name)
	return nil
}

func newMessage(t *testing.T, d protoreflect.MessageDescriptor) proto.Message {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return kind.New().Interface()
}

// call sends one request and receives one answer, or all of them if the server streams.
func (p *player) call(ctx context.Context, m protoreflect.MethodDescriptor, r proto.Message) ([]proto.Message, error) {
	path := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	if !m.IsStreamingServer() {
		answer := newMessage(p.t, m.Output())
		if err := p.conn.Invoke(ctx, path, r, answer); err != nil {
			return nil, err
		}
		return []proto.Message{answer}, nil
	}
	stream, err := p.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: m.IsStreamingClient()}, path)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(stream.SendMsg(r), stream.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var answers []proto.Message
	for {
		answer := newMessage(p.t, m.Output())
		err := stream.RecvMsg(answer)
		if errors.Is(err, io.EOF) {
			return answers, nil
		}
		if err != nil {
			return answers, err
		}
		answers = appendChunk(answers, answer)
	}
}

// appendChunk joins the chunks of a RangeStream: how large they are is the server's choice, but only the last one may say more than keys.
func appendChunk(all []proto.Message, answer proto.Message) []proto.Message {
	if len(all) > 0 {
		if before, ok := all[len(all)-1].(*pb.RangeStreamResponse); ok {
			onlyKeys := &pb.RangeStreamResponse{RangeResponse: &pb.RangeResponse{Kvs: before.GetRangeResponse().GetKvs()}}
			if len(before.GetRangeResponse().GetKvs()) > 0 && proto.Equal(before, onlyKeys) {
				proto.Merge(before, answer)
				return all
			}
		}
	}
	return append(all, answer)
}

// remember keeps a token, and hides what an answer has that is chosen by chance.
func (p *player) remember(r proto.Message, answers []proto.Message) {
	for _, answer := range answers {
		switch a := answer.(type) {
		case *pb.AuthenticateResponse:
			p.tokens[r.(*pb.AuthenticateRequest).Name] = a.Token
			a.Token = "a token"
		case *pb.LeaseGrantResponse:
			if r.(*pb.LeaseGrantRequest).ID == 0 && a.ID > 0 {
				a.ID = 1 // any will do
			}
		case *pb.LeaseTimeToLiveResponse:
			// What is left is counted down while the script runs.
			if a.TTL <= a.GrantedTTL && a.TTL > a.GrantedTTL-30 && a.GrantedTTL > 0 {
				a.TTL = a.GrantedTTL
			}
			slices.SortFunc(a.Keys, bytes.Compare) // etcd has them in no order
		}
	}
}

func (p *player) watch(ctx context.Context, name string, r *pb.WatchRequest) ([]proto.Message, error) {
	w := p.watches[name]
	if w == nil {
		stream, err := pb.NewWatchClient(p.conn).Watch(ctx)
		if err != nil {
			return nil, err
		}
		w = &watchStream{Watch_WatchClient: stream, answers: make(chan *pb.WatchResponse, 100)}
		p.watches[name] = w
		go w.receive()
	}
	if r.GetProgressRequest() != nil {
		asking, stop := context.WithCancel(ctx)
		defer stop()
		go askForProgress(asking, w)
	} else if err := w.Send(r); err != nil {
		return nil, err
	}
	return p.collect(w, func(a *pb.WatchResponse) bool {
		if r.GetProgressRequest() != nil {
			return len(a.Events) == 0 && a.WatchId == -1 && a.Header.Revision >= p.revision
		}
		return a.Created || a.Canceled
	})
}

func (w *watchStream) receive() {
	defer close(w.answers)
	for {
		a, err := w.Recv()
		if err != nil {
			w.err = err
			return
		}
		w.answers <- a
	}
}

func (p *player) events(w *watchStream, n int) ([]proto.Message, error) {
	return p.collect(w, func(a *pb.WatchResponse) bool {
		n -= len(a.Events)
		return n <= 0 || a.Canceled
	})
}

// collect receives until an answer is the last one wanted. How events are spread over answers is the server's choice, unless it marks
// fragments; but those of one revision come together.
func (p *player) collect(w *watchStream, last func(*pb.WatchResponse) bool) ([]proto.Message, error) {
	var all []proto.Message
	timeout, cancel := context.WithTimeout(p.ctx, operationTimeout)
	defer cancel()
	for {
		var a *pb.WatchResponse
		select {
		case a = <-w.answers:
		case <-timeout.Done():
			return all, errors.New("no more answers")
		}
		if a == nil {
			return all, w.err
		}
		ends := last(a)
		if len(a.Events) == 0 && !a.Created && !a.Canceled && !ends {
			continue // progress
		}
		all = appendAnswer(all, a)
		if ends {
			return all, nil
		}
	}
}

// appendAnswer joins answers that only bring more events, but not if that would hide that a revision was split.
func appendAnswer(all []proto.Message, a *pb.WatchResponse) []proto.Message {
	if len(a.Events) == 0 || a.Created || a.Canceled {
		return append(all, a)
	}
	if len(all) > 0 && !a.Fragment {
		before := all[len(all)-1].(*pb.WatchResponse)
		joins := len(before.Events) > 0 && !before.Fragment && before.WatchId == a.WatchId
		if joins && before.Events[len(before.Events)-1].Kv.ModRevision < a.Events[0].Kv.ModRevision {
			before.Header = a.Header
			before.Events = append(before.Events, a.Events...)
			return all
		}
	}
	return append(all, a)
}
