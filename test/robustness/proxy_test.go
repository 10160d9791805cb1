package robustness

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/url"
	"sync"
	"testing"
)

// proxy is a network between a server and Postgres that loses connections and packets.
type proxy struct {
	dsn      string // of the database, through the proxy
	upstream string
	listener net.Listener

	mu         sync.Mutex // guards everything below
	swallowing bool
	pending    *cut
	conns      map[net.Conn]struct{} // that are open, of both sides
}

// cut is where the next connection is cut: after a part of the next message in one direction.
type cut struct {
	toServer bool
	commits  bool // only messages of a transaction that is open count
	part     float64
	done     chan struct{}
}

// link is one connection through the proxy.
type link struct {
	client, server net.Conn
	swallowed      bool // it has lost packets, and can only go on losing them
	open           bool // a transaction is
}

// The message ReadyForQuery ends what Postgres answers, and says whether a transaction is open. Reads come and go in one message, so
// after an answer only the transactions that write are.
var (
	readyOpen = []byte{'Z', 0, 0, 0, 5, 'T'}
	readyIdle = []byte{'Z', 0, 0, 0, 5, 'I'}
)

func newProxy(t *testing.T, dsn string) *proxy {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{upstream: u.Host, conns: map[net.Conn]struct{}{}}
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	u.Host = p.listener.Addr().String()
	p.dsn = u.String()
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			client, err := p.listener.Accept()
			if err != nil {
				return // closed
			}
			serving.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = p.listener.Close() // nothing is lost with these
		p.mu.Lock()
		for c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		serving.Wait()
	})
	return p
}

func (p *proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.upstream)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{client: client, server: server}
	p.mu.Lock()
	l.swallowed = p.swallowing
	p.conns[client], p.conns[server] = struct{}{}, struct{}{}
	p.mu.Unlock()
	var copying sync.WaitGroup
	copying.Go(func() { p.copy(l, l.server, l.client, true) })
	copying.Go(func() { p.copy(l, l.client, l.server, false) })
	copying.Wait()
}

// copy carries one direction until either side ends. Of a connection that lost packets the end is lost too: the other side hears nothing.
func (p *proxy) copy(l *link, to, from net.Conn, toServer bool) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		pass, cutting, swallowed := p.judge(l, buffer[:n], toServer)
		if swallowed {
			if err != nil {
				return
			}
			continue
		}
		if pass > 0 {
			if _, werr := to.Write(buffer[:pass]); werr != nil && err == nil {
				err = werr
			}
		}
		if cutting != nil || err != nil {
			p.close(l)
			if cutting != nil {
				close(cutting.done)
			}
			return
		}
	}
}

// judge says how many bytes of a message pass, and which cut follows them.
func (p *proxy) judge(l *link, message []byte, toServer bool) (pass int, cutting *cut, swallowed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.swallowed = l.swallowed || p.swallowing
	if l.swallowed {
		return 0, nil, true
	}
	open := l.open
	if !toServer {
		l.open = !bytes.HasSuffix(message, readyIdle) && (open || bytes.HasSuffix(message, readyOpen))
	}
	c := p.pending
	if c == nil || c.toServer != toServer || c.commits && !open || len(message) == 0 {
		return len(message), nil, false
	}
	p.pending = nil
	return int(c.part * float64(len(message))), c, false
}

func (p *proxy) close(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = l.client.Close() // both are given up
	_ = l.server.Close()
	delete(p.conns, l.client)
	delete(p.conns, l.server)
}

// cutOne cuts one connection and returns when it is cut.
func (p *proxy) cutOne(ctx context.Context, c *cut) error {
	c.done = make(chan struct{})
	p.mu.Lock()
	if p.pending != nil {
		p.mu.Unlock()
		return errors.New("there is a cut already")
	}
	p.pending = c
	p.mu.Unlock()
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// swallow begins to lose all packets, restore lets those of new connections through.
func (p *proxy) swallow() { p.setSwallowing(true) }
func (p *proxy) restore() { p.setSwallowing(false) }

func (p *proxy) setSwallowing(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swallowing = on
}
