package robustness

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/pkg/sqlstore/postgres"
	"github.com/kubase/kubase/pkg/sqlstore/sqlite"
	"github.com/kubase/kubase/test/postgrestest"
)

func onSQLite(t *testing.T, dir string) *system {
	t.Helper()
	path := filepath.Join(dir, "kubase.db")
	return &system{
		servers: []*server{newServer(t, "sqlite://"+path)},
		open:    func(ctx context.Context) (sqlstore.Engine, error) { return sqlite.Open(ctx, path, sqlite.Options{}) },
	}
}

// onPostgres starts one server for each DSN of one database.
func onPostgres(t *testing.T, dsns ...string) *system {
	t.Helper()
	s := &system{
		open: func(ctx context.Context) (sqlstore.Engine, error) {
			return postgres.Open(ctx, dsns[0], postgres.Options{})
		},
	}
	for _, dsn := range dsns {
		s.servers = append(s.servers, newServer(t, dsn))
	}
	return s
}

func TestSQLite(t *testing.T) {
	t.Parallel()
	scenario(t, onSQLite(t, t.TempDir()), nil)
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	scenario(t, onPostgres(t, postgrestest.Database(t)), nil)
}

func TestPostgresTwoServers(t *testing.T) {
	t.Parallel()
	dsn := postgrestest.Database(t)
	scenario(t, onPostgres(t, dsn, dsn), nil)
}

// repeat does harm some times, each time when the clients are at work again.
func repeat(times int, harm fault) fault {
	return func(ctx context.Context, r *run) error {
		for range times {
			if err := r.awaitWrites(ctx, 5+r.rand.IntN(30)); err != nil {
				return err
			}
			if err := harm(ctx, r); err != nil {
				return err
			}
		}
		return r.awaitWrites(ctx, 20)
	}
}

// killServer kills a server and starts it again.
func killServer(_ context.Context, r *run) error {
	s := r.anyServer()
	return errors.Join(s.kill(), s.start())
}

func TestSQLiteKill(t *testing.T) {
	t.Parallel()
	scenario(t, onSQLite(t, t.TempDir()), mustFail(repeat(5, killServer)))
}

func TestPostgresKill(t *testing.T) {
	t.Parallel()
	dsn := postgrestest.Database(t)
	scenario(t, onPostgres(t, dsn, dsn), mustFail(repeat(5, killServer)))
}

// mustFail checks that a fault was one: calls failed.
func mustFail(harm fault) fault {
	return func(ctx context.Context, r *run) error {
		before := r.failed()
		if err := harm(ctx, r); err != nil {
			return err
		}
		if r.failed() == before {
			return errors.New("the fault hurt nobody")
		}
		return nil
	}
}

// TestPostgresSessionsTerminated ends all sessions of the servers again and again.
func TestPostgresSessionsTerminated(t *testing.T) {
	t.Parallel()
	dsn := postgrestest.Database(t)
	conn := connect(t, dsn)
	scenario(t, onPostgres(t, dsn, dsn), mustFail(repeat(25, func(ctx context.Context, r *run) error {
		_, err := conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'kubase' AND datname = current_database()`)
		return err
	})))
}

// TestPostgresRestarted stops and kills Postgres under the servers.
func TestPostgresRestarted(t *testing.T) {
	t.Parallel()
	db := postgrestest.Start(t)
	end := func(end func(testing.TB)) fault {
		return repeat(2, func(ctx context.Context, r *run) error {
			end(t)
			err := r.awaitFailures(ctx, 5)
			db.Restart(t)
			return err
		})
	}
	dsn := db.DSN("postgres")
	scenario(t, onPostgres(t, dsn, dsn), join(end(db.Stop), end(db.Kill)))
}

// TestPostgresConnectionsCut cuts connections to Postgres in the middle of messages: half of the time of a COMMIT or its answer.
func TestPostgresConnectionsCut(t *testing.T) {
	t.Parallel()
	dsn := postgrestest.Database(t)
	p := newProxy(t, dsn)
	scenario(t, onPostgres(t, p.dsn, dsn), mustFail(repeat(40, func(ctx context.Context, r *run) error {
		return p.cutOne(ctx, &cut{
			toServer: r.rand.IntN(2) == 0, commits: r.rand.IntN(2) == 0,
			part: min(1, 1.2*r.rand.Float64()), // now and then all of it
		})
	})))
}

// TestPostgresBlackHole has the network swallow packets without a word, on all connections of one server. Once there is a network again
// the connections it has are still dead; it must not take them one by one.
func TestPostgresBlackHole(t *testing.T) {
	t.Parallel()
	const (
		writeTimeout = 10 * time.Second // of a batch that was under way; then it asks for its outcome
		soon         = 5 * time.Second
	)
	dsn := postgrestest.Database(t)
	p := newProxy(t, dsn)
	scenario(t, onPostgres(t, p.dsn, dsn), repeat(1, func(ctx context.Context, r *run) error {
		p.swallow()
		err := r.await(ctx, 1, count{0, true, unknown}, count{0, true, refused})
		p.restore()
		if err != nil {
			return err
		}
		restored := time.Now()
		if err := r.await(ctx, 1, count{0, true, answered}); err != nil {
			return err
		}
		if took := time.Since(restored); took > writeTimeout+soon {
			return fmt.Errorf("writes began %v after the network came back", took)
		}
		return nil
	}))
}

// TestPostgresServerStopped stops one of two servers in the middle of a batch until Postgres has ended its session, and lets it go on.
func TestPostgresServerStopped(t *testing.T) {
	t.Parallel()
	db := postgrestest.Start(t)
	if err := db.Exec("CREATE ROLE other SUPERUSER LOGIN"); err != nil { // tells the sessions of the two servers apart
		t.Fatal(err)
	}
	dsn := db.DSN("postgres")
	other, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	other.User = url.User("other")
	conn := connect(t, dsn)
	inTransaction := func(ctx context.Context) (n int, err error) {
		err = conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE usename = 'other' AND state = 'idle in transaction'`).Scan(&n)
		return n, err
	}
	scenario(t, onPostgres(t, dsn, other.String()), repeat(1, func(ctx context.Context, r *run) error {
		stopped := r.servers[1]
		n, err := 0, error(nil)
		for n == 0 && err == nil {
			if err = r.await(ctx, 1, count{1, true, answered}); err == nil {
				if err = stopped.signal(syscall.SIGSTOP); err == nil {
					n, err = inTransaction(ctx)
				}
			}
			if n == 0 {
				err = errors.Join(err, stopped.signal(syscall.SIGCONT))
			}
		}
		if err != nil {
			return err
		}
		// It holds the lock that orders writes, so the other server's wait for the timeout.
		for n > 0 && err == nil {
			n, err = inTransaction(ctx)
		}
		err = errors.Join(err, r.await(ctx, 50, count{0, true, answered}))
		return errors.Join(err, stopped.signal(syscall.SIGCONT))
	}))
}

// TestSQLiteDiskFull fills the file system under a server, and gives the space back.
func TestSQLiteDiskFull(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=48m"); err != nil {
		t.Skipf("a file system of a known size cannot be mounted (%v); pkg/sqlstore/sqlite has a test with a file size limit", err)
	}
	sys := onSQLite(t, dir)
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	scenario(t, sys, repeat(2, func(ctx context.Context, r *run) error {
		if err := fill(ballast); err != nil {
			return err
		}
		err := r.await(ctx, 20, count{0, true, refused})
		return errors.Join(err, r.await(ctx, 20, count{0, false, answered}), os.Remove(ballast), disarm(ctx, r.servers[0].endpoint()))
	}))
}

// disarm clears the alarm that a full disk raised, as an operator does who has made room.
func disarm(ctx context.Context, endpoint string) error {
	c, err := dial(endpoint)
	if err != nil {
		return err
	}
	defer c.Close()
	alarms, err := c.AlarmList(ctx)
	if err != nil {
		return err
	}
	if len(alarms.Alarms) != 1 || alarms.Alarms[0].Alarm != pb.AlarmType_NOSPACE {
		return fmt.Errorf("the alarms are %v, want NOSPACE", alarms.Alarms)
	}
	_, err = c.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	return err
}

// fill writes a file until there is no space left.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for size := 1 << 20; size > 0 && err == nil; {
		if _, err = f.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size, err = size/2, nil
		}
	}
	return errors.Join(err, f.Close())
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(fmt.Errorf("connecting to Postgres: %w", err))
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // the test is over
	return conn
}
