package etcdshim_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubase/kubase/pkg/etcdshim"
)

// TestClientsThatDoNotTakeLargeAnswers asks for as many large ranges as are answered at a time and does not read the answers. Other large
// ranges wait then, small ones do not, and the turns are given back by clients that read and by clients that go away.
func TestClientsThatDoNotTakeLargeAnswers(t *testing.T) {
	const atATime = 4
	a := serve(t, etcdshim.Options{})
	for i := range 3 {
		a.put(t, fmt.Sprintf("k%d", i), strings.Repeat("v", 1<<20))
	}
	all := &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}
	conn := a.dial()
	streams := make([]grpc.ClientStream, atATime)
	for i := range streams {
		streams[i] = ask(t, conn, all)
	}

	one, err := a.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l"), Limit: 1})
	if err != nil || len(one.Kvs) != 1 || one.Count != 3 {
		t.Fatalf("a small range while large ones wait: %v, %v", one, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := a.kv.Range(short, all); status.Code(err) != codes.DeadlineExceeded {
		t.Fatalf("one more large range: %v, want that it waits", err)
	}

	answer := &pb.RangeResponse{}
	if err := streams[0].RecvMsg(answer); err != nil || len(answer.Kvs) != 3 {
		t.Fatalf("%d keys, %v", len(answer.Kvs), err)
	}
	whole := func() {
		t.Helper()
		r, err := a.kv.Range(t.Context(), all, grpc.MaxCallRecvMsgSize(1<<30))
		if err != nil || len(r.Kvs) != 3 || len(r.Kvs[2].Value) != 1<<20 {
			t.Fatalf("a large range after one was read: %v", err)
		}
	}
	whole()

	// The rest of the clients goes away.
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	conn = a.dial()
	for i := range streams {
		streams[i] = ask(t, conn, all)
	}
	for i := range streams {
		if err := streams[i].RecvMsg(answer); err != nil || len(answer.Kvs) != 3 {
			t.Fatalf("after clients went away: %d keys, %v", len(answer.Kvs), err)
		}
	}
	whole()
}

// ask returns when the answer is on its way: its headers are there.
func ask(t *testing.T, conn *grpc.ClientConn, r *pb.RangeRequest) grpc.ClientStream {
	t.Helper()
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, pb.KV_Range_FullMethodName,
		grpc.MaxCallRecvMsgSize(1<<30))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(r); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil {
		t.Fatal(err)
	}
	return stream
}
