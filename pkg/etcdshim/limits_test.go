package etcdshim_test

import (
	"context"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/kubase/kubase/pkg/etcdshim"
)

func TestHealthUntilTheEnd(t *testing.T) {
	a := serve(t, etcdshim.Options{})
	watch, err := healthpb.NewHealthClient(a.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := watch.Recv(); err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("the server is %v, %v", r, err)
	}
	ended := make(chan struct{})
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		a.server.Shutdown(ctx)
		close(ended)
	}()
	if r, err := watch.Recv(); err != nil || r.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("at its end the server is %v, %v", r, err)
	}
	<-ended
}

func TestNoReflection(t *testing.T) {
	a := serve(t, etcdshim.Options{})
	stream, err := reflectionpb.NewServerReflectionClient(a.conn).ServerReflectionInfo(t.Context())
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("asking for the services: %v", err)
	}
}

func TestConcurrentStreamsAreBounded(t *testing.T) {
	a := serve(t, etcdshim.Options{MaxConcurrentStreams: 1})
	ctx, cancel := context.WithCancel(t.Context())
	watch, err := a.watch.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
		CreateRequest: &pb.WatchCreateRequest{Key: []byte("k")},
	}}); err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	short, done := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer done()
	if _, err := a.kv.Range(short, &pb.RangeRequest{Key: []byte("k")}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a call beside the one stream: %v", err)
	}
	cancel()
	if _, err := a.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("k")}); err != nil {
		t.Errorf("a call after the one stream: %v", err)
	}
}

// TestPingsAreBounded pings as no library lets one.
func TestPingsAreBounded(t *testing.T) {
	a := serve(t, etcdshim.Options{})
	conn, err := a.dialRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		_, _ = conn.Write([]byte(http2.ClientPreface)) // what fails here shows in what is read
		framer := http2.NewFramer(conn, nil)
		_ = framer.WriteSettings()
		for range 10 {
			_ = framer.WritePing(false, [8]byte{})
		}
	}()
	framer := http2.NewFramer(nil, conn)
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("the server goes without a word: %v", err)
		}
		goAway, ok := frame.(*http2.GoAwayFrame)
		if !ok {
			continue
		}
		if goAway.ErrCode != http2.ErrCodeEnhanceYourCalm {
			t.Errorf("the server goes with %v", goAway.ErrCode)
		}
		return
	}
}
