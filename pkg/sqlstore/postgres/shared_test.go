package postgres_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/pkg/sqlstore/postgres"
	"github.com/kubase/kubase/test/postgrestest"
)

// TestTwoStoresWriteOneLog lets two servers write to one database. Revisions are dense (I1), and watchers of both get the merged log
// (I8).
func TestTwoStoresWriteOneLog(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]sqlstore.Options{"Ring": quick, "History": {
		RetryInterval: quick.RetryInterval, PollInterval: quick.PollInterval, RingBytes: 2000,
	}} {
		t.Run(name, func(t *testing.T) {
			const writers, each = 2, 60
			ctx, dsn := testContext(t), postgrestest.Schema(t)
			stores := []*sqlstore.Store{openStore(t, dsn, options), openStore(t, dsn, options)}
			var writing sync.WaitGroup
			for i, s := range stores {
				for j := range writers {
					writing.Go(func() {
						for n := range each {
							if _, err := create(ctx, s, fmt.Sprintf("%d/%d/%d", i, j, n)); err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
			}
			last := sqlstore.Revision(1 + len(stores)*writers*each)
			logs := make([][]string, len(stores))
			var reading sync.WaitGroup
			for i, s := range stores {
				stream := watchAll(t, s, 2)
				reading.Go(func() {
					var err error
					if logs[i], err = log(ctx, stream, 2, last); err != nil {
						t.Errorf("store %d: %v", i, err)
					}
				})
			}
			writing.Wait()
			reading.Wait()
			if !slices.Equal(logs[0], logs[1]) {
				t.Errorf("the logs differ: %v, %v", logs[0], logs[1])
			}
			if now, err := stores[1].CurrentRevision(ctx); err != nil || now != last {
				t.Errorf("I1: revision %d, want %d (%v)", now, last, err)
			}
			for i, s := range stores {
				d, err := s.Describe(ctx)
				if err != nil || d.Servers != len(stores) {
					t.Errorf("store %d says that there are %d servers, want %d (%v)", i, d.Servers, len(stores), err)
				}
				for want := int64(last) - 1; s.Status().Keys != want; runtime.Gosched() { // it has heard of both stores' keys
					if ctx.Err() != nil {
						t.Fatalf("store %d has counted %d keys, want %d", i, s.Status().Keys, want)
					}
				}
			}
		})
	}
}

// TestReadThenWatchIsConsistent does what the API server does for a consistent list: read the current revision, then wait until the
// watch has progressed that far. All that the other server wrote before must have come by then.
func TestReadThenWatchIsConsistent(t *testing.T) {
	t.Parallel()
	ctx, dsn := testContext(t), postgrestest.Schema(t)
	a, b := openStore(t, dsn, quick), openStore(t, dsn, quick)
	stream := watchAll(t, b, 2)
	seen := sqlstore.Revision(1)
	for n := range 40 {
		written := mustCreate(ctx, t, a, fmt.Sprint(n))
		now, err := b.CurrentRevision(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if now != written {
			t.Fatalf("I2: %d was acknowledged, the other server reads %d", written, now)
		}
		stream.RequestProgress(nil)
		for {
			batch, err := stream.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range batch.Events {
				seen = e.KV.ModRevision
			}
			if batch.Watcher != nil {
				continue
			}
			if seen != written || batch.Revision < now {
				t.Fatalf("I8: progress at %d after events up to %d, a reader has seen %d", batch.Revision, seen, now)
			}
			break
		}
	}
}

// TestTwoStoresOpenAnEmptyDatabaseTogether lets servers that start together migrate one database.
func TestTwoStoresOpenAnEmptyDatabaseTogether(t *testing.T) {
	t.Parallel()
	dsn := postgrestest.Schema(t)
	var group sync.WaitGroup
	ids := make([]int64, 3)
	for i := range ids {
		group.Go(func() {
			engine := opener(dsn)(t)
			if err := engine.Walk(t.Context(), sqlstore.Visitor{
				Meta:   func(m sqlstore.Meta, _ sqlstore.Revision) error { ids[i] = m.ClusterID; return nil },
				Lease:  func(sqlstore.Lease) error { return nil },
				Change: func(*sqlstore.Change) error { return nil },
				Key:    func(*sqlstore.Row) error { return nil },
			}); err != nil {
				t.Error(err)
			}
			if err := engine.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if ids[0] == 0 || ids[0] != ids[1] || ids[0] != ids[2] {
		t.Errorf("cluster ids: %v", ids)
	}
}

// TestAlarmsAreShared raises and clears an alarm in one server: the other one hears of it without asking.
func TestAlarmsAreShared(t *testing.T) {
	t.Parallel()
	ctx, dsn := testContext(t), postgrestest.Schema(t)
	a, b := openStore(t, dsn, quick), openStore(t, dsn, quick)
	alarm := sqlstore.Alarm{Member: 7, Kind: sqlstore.AlarmNoSpace}
	wait := func(want bool) {
		t.Helper()
		for ctx.Err() == nil && b.Alarmed(sqlstore.AlarmNoSpace) != want {
			runtime.Gosched()
		}
		if ctx.Err() != nil {
			t.Fatalf("the other server does not know that the alarm is %v", want)
		}
	}
	a.RaiseAlarm(ctx, alarm)
	wait(true)
	if found, err := b.ClearAlarm(ctx, alarm); err != nil || !found {
		t.Errorf("clearing the alarm answers %v, %v", found, err)
	}
	if alarms, err := a.Alarms(ctx); err != nil || len(alarms) != 0 {
		t.Errorf("the first server still has %v, %v", alarms, err)
	}
	a.RaiseAlarm(ctx, alarm)
	wait(true)
	if _, err := a.ClearAlarm(ctx, alarm); err != nil {
		t.Error(err)
	}
	wait(false)
}

// TestAlarmNeedsNoSpace stores an alarm and looks at how large its table is: on a full disk a table cannot grow.
func TestAlarmNeedsNoSpace(t *testing.T) {
	t.Parallel()
	ctx, dsn := testContext(t), postgrestest.Schema(t)
	store := openStore(t, dsn, quick)
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	size := func() (bytes int64) {
		t.Helper()
		if _, err := conn.Exec(ctx, `VACUUM alarms`); err != nil { // gives back pages without rows
			t.Fatal(err)
		}
		if err := conn.QueryRow(ctx, `SELECT pg_relation_size('alarms') + pg_relation_size('alarms_pkey')`).Scan(&bytes); err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	none := sqlstore.Alarm{}
	if found, err := store.ClearAlarm(ctx, none); err != nil || found {
		t.Errorf("clearing the alarm that is none answers %v, %v", found, err)
	}
	before := size()
	alarm := sqlstore.Alarm{Member: 7, Kind: sqlstore.AlarmNoSpace}
	store.RaiseAlarm(ctx, alarm)
	if alarms, err := store.Alarms(ctx); err != nil || !slices.Equal(alarms, []sqlstore.Alarm{alarm}) {
		t.Errorf("alarms: %v, %v", alarms, err)
	}
	if after := size(); after != before {
		t.Errorf("the table and its index have %d bytes with an alarm, %d without", after, before)
	}
}

// hanging is an engine whose connections for history hang, as on a network that has lost them without a word.
type hanging struct {
	sqlstore.Engine
	hangs atomic.Bool
}

func (e *hanging) Events(ctx context.Context, q sqlstore.EventsQuery) (sqlstore.EventRows, error) {
	if e.hangs.Load() {
		<-ctx.Done()
		return sqlstore.EventRows{}, ctx.Err()
	}
	return e.Engine.Events(ctx, q)
}

// TestWritesDoNotWaitForHistory has the other server write while history cannot be read: our own writes go on, and watchers get all once it
// can be.
func TestWritesDoNotWaitForHistory(t *testing.T) {
	t.Parallel()
	ctx, dsn := testContext(t), postgrestest.Schema(t)
	other := openStore(t, dsn, quick)
	engine, err := postgres.Open(ctx, dsn, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	wrapped := &hanging{Engine: engine}
	options := quick
	options.Logger = slog.New(slog.DiscardHandler)
	ours, err := sqlstore.Open(ctx, wrapped, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ours.Close(); err != nil {
			t.Error(err)
		}
	})
	stream := watchAll(t, ours, 2)
	wrapped.hangs.Store(true)
	mustCreate(ctx, t, other, "other's")
	began := time.Now()
	mustCreate(ctx, t, ours, "ours")
	if took := time.Since(began); took > 5*time.Second { // the timeout of a read is 30 s
		t.Errorf("a write took %v", took)
	}
	wrapped.hangs.Store(false)
	if keys, err := log(ctx, stream, 2, 3); err != nil || !slices.Equal(keys, []string{"other's", "ours"}) {
		t.Errorf("the watcher got %q, %v", keys, err)
	}
}
