package postgres_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kubase/kubase/test/postgrestest"
)

// proxy stands between a store and Postgres. Once armed, it lets the next write commit, swallows the answer and cuts the connection.
type proxy struct {
	listener net.Listener
	server   string
	armed    atomic.Bool
	cut      atomic.Int64
}

func startProxy(t *testing.T, server string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	p := &proxy{listener: listener, server: server}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go p.serve(client)
		}
	}()
	return p
}

func (p *proxy) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	go func() {
		_, _ = io.Copy(server, client) // ends with either of them
		_ = server.Close()
	}()
	buffer := make([]byte, 64<<10)
	var held []byte
	for {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		held = append(held, buffer[:n]...)
		// Only writes update a row; what follows is held back until it is committed.
		if p.armed.Load() && bytes.Contains(held, []byte("UPDATE 1\x00")) {
			if !bytes.Contains(held, []byte("COMMIT\x00")) {
				continue
			}
			if p.armed.CompareAndSwap(true, false) {
				p.cut.Add(1)
				return
			}
		}
		if _, err := client.Write(held); err != nil {
			return
		}
		held = held[:0]
	}
}

// TestAnswerToCommitLost loses the connection after COMMIT was done: the store finds out that it was, and says so.
func TestAnswerToCommitLost(t *testing.T) {
	t.Parallel()
	const cuts = 5
	ctx, dsn := testContext(t), postgrestest.Database(t)
	_, rest, _ := strings.Cut(dsn, "@")
	address, rest, _ := strings.Cut(rest, "/")
	p := startProxy(t, address)
	store := openStore(t, fmt.Sprintf("postgres://postgres@%s/%s", p.listener.Addr(), rest), quick)
	stream := watchAll(t, store, 2)
	for n := range cuts {
		mustCreate(ctx, t, store, fmt.Sprintf("%d/before", n))
		p.armed.Store(true)
		mustCreate(ctx, t, store, fmt.Sprintf("%d/cut", n))
	}
	if n := p.cut.Load(); n != cuts {
		t.Errorf("%d connections were cut, want %d", n, cuts)
	}
	now, err := store.CurrentRevision(ctx)
	if err != nil || now != 1+2*cuts {
		t.Errorf("I1: revision %d (%v)", now, err)
	}
	if _, err := log(ctx, stream, 2, 1+2*cuts); err != nil {
		t.Error(err)
	}
}
