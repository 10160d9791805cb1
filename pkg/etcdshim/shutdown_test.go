package etcdshim_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubase/kubase/pkg/etcdshim"
)

// TestShutdownWaitsForNoClient stops servers whose clients are in the way of it.
func TestShutdownWaitsForNoClient(t *testing.T) {
	value := strings.Repeat("v", 100<<10)
	fill := func(t *testing.T, a api) {
		for i := range 200 { // more than the windows of a connection
			a.put(t, fmt.Sprint("k", i), value)
		}
	}
	for name, hinder := range map[string]func(*testing.T, api){
		"a connection that says nothing": func(t *testing.T, a api) {
			dialRaw(t, a)
			fill(t, api{kv: pb.NewKVClient(a.dial())}) // the connection after it was accepted
		},
		"a connection that is not read": func(t *testing.T, a api) {
			conn := dialRaw(t, a)
			_, err := conn.Write([]byte(http2.ClientPreface))
			framer := http2.NewFramer(conn, conn)
			if err := errors.Join(err, framer.WriteSettings()); err != nil {
				t.Fatal(err)
			}
			for range 2 { // settings and their acknowledgement: the connection works
				if _, err := framer.ReadFrame(); err != nil {
					t.Fatal(err)
				}
			}
		},
		"a watch that is not read": func(t *testing.T, a api) {
			a.stream(t).create(&pb.WatchCreateRequest{Key: []byte("k"), RangeEnd: []byte("l"), StartRevision: 1})
			fill(t, a)
		},
		"a stream of a range that is not read": func(t *testing.T, a api) {
			fill(t, a)
			s, err := a.kv.RangeStream(t.Context(), &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}, grpc.MaxCallRecvMsgSize(math.MaxInt32))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Recv(); err != nil {
				t.Fatal(err)
			}
		},
		"a snapshot that is not read": func(t *testing.T, a api) {
			fill(t, a)
			s, err := a.maintenance.Snapshot(t.Context(), &pb.SnapshotRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Recv(); err != nil {
				t.Fatal(err)
			}
		},
		"large ranges that are not read, and more that wait": func(t *testing.T, a api) {
			fill(t, a)
			all := &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l")}
			for range 4 { // as many as are answered at a time
				ask(t, a.conn, all)
			}
			go func() { _, _ = a.kv.Range(t.Context(), all) }()
			short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, err := a.kv.Range(short, all); status.Code(err) != codes.DeadlineExceeded {
				t.Fatalf("one more large range: %v, want that it waits", err)
			}
		},
		"watches that come again at once": func(t *testing.T, a api) {
			for range 10 {
				go func() {
					for t.Context().Err() == nil {
						s, err := a.watch.Watch(t.Context())
						if err == nil {
							err = s.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
								CreateRequest: &pb.WatchCreateRequest{Key: []byte("k")},
							}})
						}
						for err == nil {
							_, err = s.Recv()
						}
					}
				}()
			}
		},
		"a lease that is kept alive": func(t *testing.T, a api) {
			s, err := a.lease.LeaseKeepAlive(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Send(&pb.LeaseKeepAliveRequest{ID: 1}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Recv(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := serve(t, etcdshim.Options{})
			hinder(t, a)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			began := time.Now()
			a.server.Shutdown(ctx)
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("it took %s", took)
			} else {
				t.Logf("it took %s", took)
			}
		})
	}
}

func dialRaw(t *testing.T, a api) net.Conn {
	t.Helper()
	conn, err := a.dialRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestShutdownLosesNothingForThoseWhoRead stops a server under writes: who got an answer sees the event of his write on a watch that is open.
func TestShutdownLosesNothingForThoseWhoRead(t *testing.T) {
	a := serve(t, etcdshim.Options{})
	s := a.stream(t)
	s.create(&pb.WatchCreateRequest{Key: []byte("k")})
	s.recv()
	const writers = 8
	acknowledged := make(chan int64, writers)
	for range writers {
		kv := pb.NewKVClient(a.dial())
		go func() {
			newest := int64(0)
			for {
				r, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte("k")})
				if err != nil {
					acknowledged <- newest
					return
				}
				newest = r.Header.Revision
			}
		}()
	}
	seen := int64(0)
	for seen < 100 {
		seen = s.recv().Header.Revision
	}
	a.server.Shutdown(t.Context())
	for {
		r, err := s.Recv()
		if status.Code(err) == codes.Unavailable && status.Convert(err).Message() == status.Convert(rpctypes.ErrGRPCStopped).Message() {
			break
		}
		if err != nil {
			t.Fatalf("the watch ends with %v", err)
		}
		seen = r.Header.Revision
	}
	for range writers {
		if newest := <-acknowledged; newest > seen {
			t.Errorf("revision %d was acknowledged, the watch ended at %d", newest, seen)
		}
	}
}
