package postgres_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/pkg/sqlstore/postgres"
	"github.com/kubase/kubase/pkg/sqlstore/storetest"
	"github.com/kubase/kubase/test/postgrestest"
)

// TestICUDatabaseOrdersKeysBytewise runs the random history where text is ordered by language (I6).
func TestICUDatabaseOrdersKeysBytewise(t *testing.T) {
	t.Parallel()
	storetest.RunRandom(t, func(t *testing.T) storetest.Opener {
		return opener(postgrestest.Database(t, postgrestest.WithICULocale("en-US")))
	})
}

const terminateAll = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'kubase'`

// TestSessionsTerminatedWhileWriting ends all sessions again and again. What was acknowledged is there once (I9); what was answered
// with ErrUnavailable is not.
func TestSessionsTerminatedWhileWriting(t *testing.T) {
	t.Parallel()
	const writers, terminations = 4, 12
	ctx, server := testContext(t), postgrestest.Start(t)
	store := openStore(t, server.DSN("postgres"), quick)
	stream := watchAll(t, store, 2)
	acknowledged := make(chan struct{})
	stop := make(chan struct{})
	keys := make([]int, writers)
	var failures, unknown sync.Map
	var group sync.WaitGroup
	for i := range writers {
		group.Go(func() {
			for n := 0; ; {
				key := fmt.Sprintf("%d/%d", i, n)
				_, err := create(ctx, store, key)
				_, maybe := unknown.Load(key)
				switch {
				case err == nil, maybe && errors.Is(err, errKeyExists):
					n++
					keys[i] = n
				case errors.Is(err, sqlstore.ErrUnavailable):
					failures.Store(key, err)
				case errors.Is(err, sqlstore.ErrOutcomeUnknown):
					unknown.Store(key, err)
				default:
					before, _ := failures.Load(key)
					t.Errorf("%s: %v (it failed before with: %v)", key, err, before)
					return
				}
				select {
				case acknowledged <- struct{}{}:
				case <-stop:
					return
				}
			}
		})
	}
	for n := range terminations * 20 {
		select {
		case <-acknowledged:
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
		if n%20 == 19 {
			if err := server.Exec(terminateAll); err != nil {
				t.Error(err)
			}
		}
	}
	close(stop)
	group.Wait()
	total := 0
	for _, n := range keys {
		total += n
	}
	res, err := store.Range(ctx, &sqlstore.RangeRequest{KeyRange: everything})
	for errors.Is(err, sqlstore.ErrUnavailable) { // connections of the pool that were terminated
		res, err = store.Range(ctx, &sqlstore.RangeRequest{KeyRange: everything})
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(res.KVs) != total || res.Revision != sqlstore.Revision(1+total) {
		t.Errorf("I1, I9: %d keys at revision %d, %d were acknowledged", len(res.KVs), res.Revision, total)
	}
	if _, err := log(ctx, stream, 2, res.Revision); err != nil {
		t.Error(err)
	}
}

// TestServerRestart takes the server away and gives it back: calls fail with ErrUnavailable meanwhile and a watch goes on.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	ctx, server := testContext(t), postgrestest.Start(t)
	store := openStore(t, server.DSN("postgres"), quick)
	stream := watchAll(t, store, 2)
	next := sqlstore.Revision(2)
	for i, end := range []func(testing.TB){server.Kill, server.Stop} {
		mustCreate(ctx, t, store, fmt.Sprintf("before/%d", i))
		end(t)
		if _, err := create(ctx, store, "down"); !errors.Is(err, sqlstore.ErrUnavailable) {
			t.Errorf("a write answers %v", err)
		}
		if _, err := store.CurrentRevision(ctx); !errors.Is(err, sqlstore.ErrUnavailable) {
			t.Errorf("a read answers %v", err)
		}
		server.Restart(t)
		mustCreate(ctx, t, store, fmt.Sprintf("after/%d", i))
		keys, err := log(ctx, stream, next, next+1)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("[before/%d after/%d]", i, i); fmt.Sprint(keys) != want {
			t.Errorf("events %v, want %s", keys, want)
		}
		next += 2
	}
}

// logLines receives what is logged, a line at a time.
type logLines chan string

func (l logLines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// TestOutageOfIdleServerIsLoggedOnce takes Postgres away from a server that has nothing to do but to end a lease, which it tries
// again and again.
func TestOutageOfIdleServerIsLoggedOnce(t *testing.T) {
	t.Parallel()
	ctx, server := testContext(t), postgrestest.Start(t)
	lines := make(logLines, 1000)
	options := quick
	options.MinLeaseTTL = 1
	options.Logger = slog.New(slog.NewTextHandler(lines, nil))
	store := openStore(t, server.DSN("postgres"), options)
	if _, err := store.LeaseGrant(ctx, 1, 1); err != nil {
		t.Fatal(err)
	}
	server.Kill(t)
	var got []string
	until := func(text string) {
		t.Helper()
		for len(got) == 0 || !strings.Contains(got[len(got)-1], text) {
			select {
			case line := <-lines:
				got = append(got, line)
			case <-ctx.Done():
				t.Fatalf("nothing logged of %q, but:\n%s", text, strings.Join(got, ""))
			}
		}
	}
	until("the database does not answer")
	server.Restart(t)
	until("the database answers again")
	got = slices.DeleteFunc(got, func(line string) bool { return strings.Contains(line, "notifications") }) // these have a connection of their own
	if len(got) != 2 {
		t.Errorf("logged, beside notifications:\n%swant two lines", strings.Join(got, ""))
	}
}

// TestListenConnectionLost ends the session that listens: the other server's events still come (I7).
func TestListenConnectionLost(t *testing.T) {
	t.Parallel()
	ctx, server := testContext(t), postgrestest.Start(t)
	dsn := server.DSN("postgres")
	a, b := openStore(t, dsn, quick), openStore(t, dsn, quick)
	stream := watchAll(t, b, 2)
	for n := range 5 {
		if err := server.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'DO%LISTEN%'`); err != nil {
			t.Fatal(err)
		}
		revision := mustCreate(ctx, t, a, fmt.Sprint(n))
		if _, err := log(ctx, stream, revision, revision); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOpenErrors looks at what people get to read: one line, without the password.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	address := strings.TrimPrefix(strings.TrimSuffix(server.DSN(""), "/?sslmode=disable"), "postgres://postgres@")
	for name, c := range map[string]struct{ dsn, says string }{
		"unknown user":     {"postgres://somebody:hunter2@" + address + "/postgres?sslmode=disable", `role "somebody" does not exist`},
		"unknown database": {"postgres://postgres:hunter2@" + address + "/nowhere?sslmode=disable", `database "nowhere" does not exist`},
		"unreachable":      {"postgres://postgres:hunter2@127.0.0.1:1/postgres", "127.0.0.1:1 did not answer"},
		"not a DSN":        {"postgres://postgres:hunter2@host:port/postgres", "DSN"},
		"unknown setting":  {"host=x password=hunter2 sslmode=sometimes", "DSN"},
		// A password that is not where it should be must not be shown either.
		"@ in the password":       {"postgres://postgres:p@hunter2@127.0.0.1:1/postgres", "%40"},
		"password as the port":    {"postgres://postgres@127.0.0.1:hunter2/postgres", "DSN"},
		"password as a parameter": {"postgres://postgres@127.0.0.1/postgres?pool_max_conns=hunter2", "DSN"},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			_, err := postgres.Open(testContext(t), c.dsn, postgres.Options{ConnectTimeout: 200 * time.Millisecond})
			if err == nil {
				t.Fatal("no error")
			}
			text := err.Error()
			if !strings.Contains(text, c.says) || strings.Contains(text, "\n") || strings.Contains(text, "hunter2") {
				t.Errorf("the error is %q", text)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}
