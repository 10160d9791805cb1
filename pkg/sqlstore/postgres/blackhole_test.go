package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/pkg/sqlstore/postgres"
	"github.com/kubase/kubase/test/postgrestest"
)

// network stands between a store and Postgres and can lose its connections without a word: nothing arrives, neither side hears of it.
type network struct {
	listener net.Listener
	server   string

	loseNew atomic.Bool // lose each new connection when Postgres is ready for its first query

	mu    sync.Mutex // guards everything below
	links []*atomic.Bool
	conns []net.Conn
}

func startNetwork(t *testing.T, server string) *network {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{listener: listener, server: server}
	t.Cleanup(func() {
		_ = listener.Close() // nothing is lost with these
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, c := range n.conns {
			_ = c.Close()
		}
	})
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed
			}
			server, err := net.Dial("tcp", n.server)
			if err != nil {
				_ = client.Close()
				continue
			}
			lost := &atomic.Bool{}
			n.mu.Lock()
			n.links = append(n.links, lost)
			n.conns = append(n.conns, client, server)
			n.mu.Unlock()
			go carry(server, client, lost, nil)
			go carry(client, server, lost, &n.loseNew)
		}
	}()
	return n
}

// carry carries one direction. If lose is set the connection is lost once Postgres has said that it is ready.
func carry(to, from net.Conn, lost, lose *atomic.Bool) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if lost.Load() {
			if err != nil {
				return
			}
			continue
		}
		if err == nil {
			_, err = to.Write(buffer[:n])
		}
		if err != nil {
			_ = to.Close()
			return
		}
		if lose != nil && lose.Load() && bytes.HasSuffix(buffer[:n], []byte("Z\x00\x00\x00\x05I")) {
			lost.Store(true)
		}
	}
}

// lose loses all connections there are; new ones work.
func (n *network) lose() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, lost := range n.links {
		lost.Store(true)
	}
}

// TestConnectionsLostSilently fills the pool and loses all its connections: the one write that meets the first of them fails, and the
// store does not try the others in turn, nor do writes wait for background reads on them.
func TestConnectionsLostSilently(t *testing.T) {
	t.Parallel()
	const sessions, writeTimeout = 6, time.Second
	ctx, dsn := testContext(t), postgrestest.Database(t)
	_, rest, _ := strings.Cut(dsn, "@")
	address, database, _ := strings.Cut(rest, "/")
	n := startNetwork(t, address)
	options := quick
	options.WriteTimeout = writeTimeout
	store := openStore(t, fmt.Sprintf("postgres://postgres@%s/%s", n.listener.Addr(), database), options)
	observer, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = observer.Close(context.Background()) })
	for open := 0; open <= sessions; { // the one that listens is not from the pool
		var reading sync.WaitGroup
		for range 4 * sessions {
			reading.Go(func() {
				if _, err := store.Range(ctx, &sqlstore.RangeRequest{KeyRange: everything}); err != nil {
					t.Error(err)
				}
			})
		}
		reading.Wait()
		err := observer.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'kubase' AND datname = current_database()`).Scan(&open)
		if err != nil {
			t.Fatal(err)
		}
	}
	mustCreate(ctx, t, store, "before")
	n.lose()
	failed := 0
	for ; ; failed++ {
		began := time.Now()
		_, err := create(ctx, store, fmt.Sprint(failed))
		if took := time.Since(began); took > 5*writeTimeout {
			t.Errorf("a write took %v", took)
		}
		if err == nil || failed == 2*sessions {
			break
		}
	}
	if failed > 2 { // the second may meet a connection that was in use meanwhile
		t.Errorf("%d writes failed before one succeeded", failed)
	}
}

// TestConnectionsLostAsTheyAreMade loses connections before their first statement is answered: they must not keep their places in the pool.
func TestConnectionsLostAsTheyAreMade(t *testing.T) {
	t.Parallel()
	ctx, dsn := testContext(t), postgrestest.Database(t)
	_, rest, _ := strings.Cut(dsn, "@")
	address, database, _ := strings.Cut(rest, "/")
	n := startNetwork(t, address)
	options := quick
	options.WriteTimeout = time.Second
	const places = 2
	store := openStore(t, fmt.Sprintf("postgres://postgres@%s/%s&pool_max_conns=%d", n.listener.Addr(), database, places), options)
	mustCreate(ctx, t, store, "before")
	n.loseNew.Store(true)
	n.lose()
	for i := range 2 * places {
		if _, err := create(ctx, store, fmt.Sprint(i)); err == nil {
			t.Fatal("the network lost nothing")
		}
	}
	n.loseNew.Store(false)
	const soon = 10 * time.Second // twice what making a connection may take
	for restored := time.Now(); ; {
		_, err := create(ctx, store, "after")
		if err == nil {
			return
		}
		if time.Since(restored) > soon {
			t.Fatalf("the pool has not recovered: %v", err)
		}
	}
}

// TestCompactionIsTakenOver loses the connections of a server in the middle of deleting history. Postgres does not hear of it, and ends
// the session that keeps the others from it.
func TestCompactionIsTakenOver(t *testing.T) {
	t.Parallel()
	const writeTimeout = time.Second
	ctx, dsn := testContext(t), postgrestest.Database(t)
	losing, stop := context.WithCancel(ctx)
	defer stop()
	_, rest, _ := strings.Cut(dsn, "@")
	address, database, _ := strings.Cut(rest, "/")
	n := startNetwork(t, address)
	open := func(dsn string) *postgres.Engine {
		engine, err := postgres.Open(ctx, dsn, postgres.Options{WriteTimeout: writeTimeout, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := engine.Close(); err != nil {
				t.Error(err)
			}
		})
		return engine
	}
	lost, other := open(fmt.Sprintf("postgres://postgres@%s/%s", n.listener.Addr(), database)), open(dsn)
	observer, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = observer.Close(context.Background()) })
	// Three versions of a key, compacted at the last.
	tx, _, err := other.Begin(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	var changes []sqlstore.Change
	meta := tx.Meta()
	for version := range int64(3) {
		before := meta.CurrentRevision
		meta.CurrentRevision++
		c := sqlstore.Change{Row: sqlstore.Row{KeyValue: sqlstore.KeyValue{
			Key: []byte("key"), ModRevision: meta.CurrentRevision, CreateRevision: 2, Version: version + 1,
		}}}
		if version > 0 {
			c.PrevRevision = before
		}
		changes = append(changes, c)
	}
	meta.CompactRevision = meta.CurrentRevision
	if err := tx.Commit(ctx, changes, meta); err != nil {
		t.Fatal(err)
	}
	// It waits for this table when it has taken its turn.
	hold, err := observer.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hold.Exec(ctx, "LOCK TABLE revisions"); err != nil {
		t.Fatal(err)
	}
	deleted := make(chan error)
	go func() {
		_, err := lost.DeleteHistory(losing, 100)
		deleted <- err
	}()
	for waiting := 0; waiting == 0; {
		if err := hold.QueryRow(ctx, `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'revisions'::regclass`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	n.lose()
	if err := hold.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for done := false; !done; {
		attempt, cancel := context.WithTimeout(ctx, writeTimeout)
		done, err = other.DeleteHistory(attempt, 100)
		cancel()
		if err != nil && time.Since(began) > 5*writeTimeout {
			t.Fatalf("not taken over in %v: %v", time.Since(began), err)
		}
	}
	var left int
	if err := observer.QueryRow(ctx, "SELECT count(*) FROM revisions").Scan(&left); err != nil || left != 1 {
		t.Errorf("%d versions are left (%v), want 1", left, err)
	}
	stop()
	if err := <-deleted; err == nil {
		t.Error("nothing was lost")
	}
}

// TestHalfABatchDoesNotKeepTheLock takes the lock on meta and leaves Postgres waiting for the rest of its batch, for which there is no
// timeout.
func TestHalfABatchDoesNotKeepTheLock(t *testing.T) {
	t.Parallel()
	const writeTimeout = time.Second
	ctx, dsn := testContext(t), postgrestest.Database(t)
	options := quick
	options.WriteTimeout = writeTimeout
	options.Logger = slog.New(slog.DiscardHandler)
	engine, err := postgres.Open(ctx, dsn, postgres.Options{WriteTimeout: writeTimeout, Logger: options.Logger})
	if err != nil {
		t.Fatal(err)
	}
	store, err := sqlstore.Open(ctx, engine, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	gone, err := pgconn.Connect(ctx, dsn+"&application_name=kubase")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = gone.Close(context.Background()) }) // it may be ended by then
	if err := gone.Exec(ctx, "BEGIN; SET LOCAL idle_in_transaction_session_timeout = 1000").Close(); err != nil {
		t.Fatal(err)
	}
	front := gone.Frontend()
	front.SendParse(&pgproto3.Parse{Query: "SELECT FROM meta FOR UPDATE"})
	front.SendBind(&pgproto3.Bind{})
	front.SendExecute(&pgproto3.Execute{})
	front.Send(&pgproto3.Flush{}) // and no Sync
	if err := front.Flush(); err != nil {
		t.Fatal(err)
	}
	for done := false; !done; {
		message, err := front.Receive()
		if err != nil {
			t.Fatal(err)
		}
		_, done = message.(*pgproto3.CommandComplete)
	}
	began := time.Now()
	if _, err := create(ctx, store, "waits"); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Fatalf("the lock is not held: %v", err)
	}
	mustCreate(ctx, t, store, "goes on")
	if took := time.Since(began); took > 5*writeTimeout {
		t.Errorf("writes went on after %v", took)
	}
}
