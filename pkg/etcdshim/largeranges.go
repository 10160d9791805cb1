package etcdshim

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protobuf "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

const (
	// A range of more keys than this is large; one without a limit may be all that is stored.
	largeRangeKeys = 1000
	// An answer of fewer bytes than this is not counted once it is encoded.
	largeAnswerBytes = 1 << 20
	// So many large ranges are in memory at a time, from when they are read until their answer is on the wire.
	concurrentLargeRanges = 4
	// How long a large range waits for clients that do not take the answers they asked for.
	largeRangeWait = 30 * time.Second
)

// largeRanges bounds the memory of answers: the other large ranges wait. gRPC queues an answer as a whole, however slowly its client takes
// it, so the turn of a range ends when gRPC frees the buffer with its answer.
type largeRanges struct {
	turns chan struct{}
	wait  time.Duration
	end   <-chan struct{} // nobody waits any more
}

func newLargeRanges(end <-chan struct{}) *largeRanges {
	return &largeRanges{turns: make(chan struct{}, concurrentLargeRanges), wait: largeRangeWait, end: end}
}

// turn is one range's. It is the pool to which gRPC returns the answer's buffer.
type turn struct {
	end func()
}

func (l *largeRanges) begin(ctx context.Context) (*turn, error) {
	select {
	case l.turns <- struct{}{}:
		return l.taken(), nil
	default:
	}
	deadline := time.NewTimer(l.wait)
	defer deadline.Stop()
	collect := time.NewTicker(time.Second)
	defer collect.Stop()
	for {
		select {
		case l.turns <- struct{}{}:
			return l.taken(), nil
		case <-collect.C:
			runtime.GC() // for the turns of connections that broke
		case <-deadline.C:
			return nil, rpctypes.ErrGRPCRequestTooManyRequests
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-l.end:
			return nil, rpctypes.ErrGRPCStopped
		}
	}
}

func (l *largeRanges) taken() *turn {
	t := &turn{end: sync.OnceFunc(func() { <-l.turns })}
	// gRPC forgets the buffers of a broken connection without freeing them.
	runtime.AddCleanup(t, func(end func()) { end() }, t.end)
	return t
}

// Get implements mem.BufferPool; nothing is taken from here.
func (t *turn) Get(length int) *[]byte {
	b := make([]byte, length)
	return &b
}

// Put implements mem.BufferPool.
func (t *turn) Put(*[]byte) { t.end() }

// answer is a large range's; codec knows it.
type answer struct {
	*pb.RangeResponse
	turn *turn
}

// intercept is a grpc.UnaryServerInterceptor.
func (l *largeRanges) intercept(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	r, ok := request.(*pb.RangeRequest)
	if !ok || r.CountOnly || len(r.RangeEnd) == 0 || r.Limit > 0 && r.Limit <= largeRangeKeys {
		return handler(ctx, request)
	}
	turn, err := l.begin(ctx)
	if err != nil {
		return nil, err
	}
	response, err := handler(ctx, request)
	if err != nil {
		turn.end()
		return nil, err
	}
	return &answer{RangeResponse: response.(*pb.RangeResponse), turn: turn}, nil
}

// codec is gRPC's for protobuf, but ends the turn of a large range.
type codec struct {
	encoding.CodecV2
}

func newCodec() codec { return codec{encoding.GetCodecV2(protobuf.Name)} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	a, ok := v.(*answer)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	size := proto.Size(a.RangeResponse)
	if size < largeAnswerBytes {
		defer a.turn.end()
		return c.CodecV2.Marshal(a.RangeResponse)
	}
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(make([]byte, 0, size), a.RangeResponse)
	if err != nil {
		a.turn.end()
		return nil, fmt.Errorf("encoding a range: %w", err)
	}
	return mem.BufferSlice{mem.NewBuffer(&b, a.turn)}, nil
}
