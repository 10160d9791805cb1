package etcdshim

import (
	"context"
	"net"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

const (
	// So long clients may take to hear that they are to bring no more calls: who does is refused then.
	goAwayWait = 100 * time.Millisecond
	// So long clients may take to receive what is left.
	farewellWait = 300 * time.Millisecond
)

// Shutdown lets calls under way finish, until ctx ends: then they are cut off. Then watches and other streams end: who reads his watch gets
// the events of every write that was answered. A client that does not take what is sent, or does not even speak, is not waited for.
func (s *Server) Shutdown(ctx context.Context) {
	s.health.Shutdown() // those who watch it hear of the end
	_ = s.locks.Close() // those who wait for a lock would wait on; there is no connection that closing could fail on
	done := make(chan struct{})
	go func() {
		s.GracefulStop()
		close(done)
	}()
	wait(ctx, done, goAwayWait)
	select {
	case <-s.calls.finish():
	case <-ctx.Done():
	}
	s.stop()
	wait(ctx, done, farewellWait)
	s.conns.close()
	s.Stop()
	<-done
}

func wait(ctx context.Context, done <-chan struct{}, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Serve accepts connections until Shutdown.
func (s *Server) Serve(l net.Listener) error { return s.Server.Serve(trackingListener{l, s.conns}) }

// calls counts the calls under way that have one answer.
type calls struct {
	finishing chan struct{} // closed when no more are let in
	finished  chan struct{} // closed when the last one has ended then

	mu   sync.Mutex // guards the rest
	n    int
	last bool // no more are let in
}

func newCalls() *calls { return &calls{finishing: make(chan struct{}), finished: make(chan struct{})} }

// finish lets no more calls in, and returns what is closed when none is left.
func (c *calls) finish() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.last {
		c.last = true
		close(c.finishing)
		if c.n == 0 {
			close(c.finished)
		}
	}
	return c.finished
}

func (c *calls) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.last {
		c.n++
	}
	return !c.last
}

func (c *calls) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n--
	if c.last && c.n == 0 {
		close(c.finished)
	}
}

// intercept is a grpc.UnaryServerInterceptor.
func (c *calls) intercept(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if !c.begin() {
		return nil, rpctypes.ErrGRPCStopped
	}
	defer c.end()
	return handler(ctx, request)
}

// conns are the open connections. gRPC does not close those that have not begun to speak HTTP/2, but waits for them.
type conns struct {
	mu   sync.Mutex
	open map[net.Conn]struct{}
}

func (c *conns) add(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[conn] = struct{}{}
}

func (c *conns) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, conn)
}

func (c *conns) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		_ = conn.Close() // nobody is there to hear of a failure
	}
}

type trackingListener struct {
	net.Listener
	conns *conns
}

func (l trackingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.conns.add(conn)
	return &trackedConn{conn, l.conns}, nil
}

type trackedConn struct {
	net.Conn
	conns *conns
}

func (c *trackedConn) Close() error {
	c.conns.remove(c.Conn)
	return c.Conn.Close()
}
