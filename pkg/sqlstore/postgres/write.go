package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// writeTx is the write transaction: one connection, with the lock on meta.
type writeTx struct {
	e     *Engine
	conn  *pgxpool.Conn // nil when the transaction has ended
	meta  sqlstore.Meta
	batch int64 // its number among this engine's batches
}

// Begin implements sqlstore.Engine: one round trip that locks meta, and so orders this transaction among those of all servers, and
// loads keys as they are from then on.
func (e *Engine) Begin(ctx context.Context, keys [][]byte) (sqlstore.WriteTx, []sqlstore.Row, error) {
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return nil, nil, wrap(err)
	}
	tx := &writeTx{e: e, conn: conn, batch: e.batches.Add(1)}
	var rows []sqlstore.Row
	b := &pgx.Batch{}
	b.Queue(beginWrite)
	b.Queue(lockMeta, e.timeoutSetting()).QueryRow(func(row pgx.Row) error {
		return row.Scan(&tx.meta.ClusterID, &tx.meta.CurrentRevision, &tx.meta.CompactRevision, &tx.meta.AuthGeneration, nil, nil)
	})
	if len(keys) > 0 {
		b.Queue(selectKeys, keys).Query(appendRows(&rows))
	}
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		tx.Rollback()
		return nil, nil, wrap(e.inTime(err))
	}
	return tx, rows, nil
}

// timeoutSetting is the write timeout as a setting of Postgres, in milliseconds.
func (e *Engine) timeoutSetting() string { return strconv.FormatInt(e.writeTimeout.Milliseconds(), 10) }

func (t *writeTx) Meta() sqlstore.Meta { return t.meta }

func (t *writeTx) Get(ctx context.Context, keys [][]byte) (rows []sqlstore.Row, err error) {
	r, err := t.conn.Query(ctx, selectKeys, keys)
	if err != nil {
		return nil, wrap(err)
	}
	defer r.Close()
	if err := appendRows(&rows)(r); err != nil {
		return nil, wrap(err)
	}
	return rows, wrap(r.Err())
}

func (t *writeTx) Range(ctx context.Context, q sqlstore.RangeQuery) (rows sqlstore.RangeRows, err error) {
	rows.Meta = t.meta
	b := &pgx.Batch{}
	queueRange(b, q, &rows)
	return rows, wrap(t.conn.SendBatch(ctx, b).Close())
}

func (t *writeTx) Lease(ctx context.Context, id sqlstore.LeaseID) (l sqlstore.Lease, err error) {
	err = t.conn.QueryRow(ctx, selectLease, id).Scan(&l.ID, &l.TTL, &l.Keepalives)
	if errors.Is(err, pgx.ErrNoRows) {
		return l, sqlstore.ErrLeaseNotFound
	}
	return l, wrap(err)
}

func (t *writeTx) LeaseKeys(ctx context.Context, id sqlstore.LeaseID) ([][]byte, error) {
	rows, err := t.conn.Query(ctx, selectLeaseKeys, id)
	return collectKeys(rows, err)
}

func (t *writeTx) PutLease(ctx context.Context, l sqlstore.Lease) error {
	_, err := t.conn.Exec(ctx, upsertLease, l.ID, l.TTL, l.Keepalives)
	return wrap(err)
}

func (t *writeTx) DeleteLease(ctx context.Context, id sqlstore.LeaseID) error {
	_, err := t.conn.Exec(ctx, deleteLease, id)
	return wrap(err)
}

func (t *writeTx) Write(ctx context.Context, changes []sqlstore.Change) error {
	b := &pgx.Batch{}
	queueChanges(b, changes)
	return wrap(t.conn.SendBatch(ctx, b).Close())
}

// Commit implements sqlstore.WriteTx: one round trip that writes everything, commits and wakes the other servers.
func (t *writeTx) Commit(ctx context.Context, changes []sqlstore.Change, meta sqlstore.Meta) error {
	b := &pgx.Batch{}
	queueChanges(b, changes)
	b.Queue(finishBatch, meta.CurrentRevision, meta.CompactRevision, meta.AuthGeneration, t.e.server, t.batch)
	committed := false
	b.Queue(commit).Exec(func(tag pgconn.CommandTag) error {
		if tag.String() != "COMMIT" {
			return fmt.Errorf("COMMIT answered %s", tag)
		}
		committed = true
		return nil
	})
	err := t.conn.SendBatch(ctx, b).Close()
	switch {
	case committed:
		t.release()
		return nil
	case unknownOutcome(err):
		t.discard()
		return fmt.Errorf("%w: %w", sqlstore.ErrOutcomeUnknown, err)
	}
	return wrap(err)
}

// Committed implements sqlstore.WriteTx. Getting the lock on meta shows that the transaction has ended.
func (t *writeTx) Committed(ctx context.Context) (bool, error) {
	t.e.endAbandoned() // as this transaction may be by now
	tx, _, err := t.e.Begin(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback()
	var last int64
	err = tx.(*writeTx).conn.QueryRow(ctx, selectServer, t.e.server).Scan(&last)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return last == t.batch, wrap(err)
}

func (t *writeTx) Rollback() {
	if t.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.e.writeTimeout)
	defer cancel()
	if _, err := t.conn.Exec(ctx, rollback); err != nil {
		t.discard() // the server rolls back when the connection goes
		return
	}
	t.release()
}

func (t *writeTx) release() {
	t.conn.Release()
	t.conn = nil
}

// discard closes the connection: what state it is in is not known. What became of it may have become of all others, and the pool would
// hand them out one by one, each to fail in its turn: they are made anew.
func (t *writeTx) discard() {
	conn := t.conn.Hijack()
	t.conn = nil
	t.e.pool.Reset()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // it is being given up
}

// columns are rows as arrays, for unnest.
type columns struct {
	keys, values                             [][]byte
	mods, creates, versions, leases, befores []int64
	subs, beforeSubs                         []int32
}

func (c *columns) add(change *sqlstore.Change) {
	c.keys = append(c.keys, blob(change.Key))
	c.values = append(c.values, blob(change.Value))
	c.mods = append(c.mods, int64(change.ModRevision))
	c.subs = append(c.subs, int32(change.Sub))
	c.creates = append(c.creates, int64(change.CreateRevision))
	c.versions = append(c.versions, change.Version)
	c.leases = append(c.leases, int64(change.Lease))
	c.befores = append(c.befores, int64(change.PrevRevision))
	c.beforeSubs = append(c.beforeSubs, int32(change.PrevSub))
}

// queueChanges queues the statements that write changes: at most three, however many changes there are.
func queueChanges(b *pgx.Batch, changes []sqlstore.Change) {
	if len(changes) == 0 {
		return
	}
	last := make(map[string]int, len(changes)) // only a key's last change matters to its live row
	for i := range changes {
		last[string(changes[i].Key)] = i
	}
	var history, live columns
	var dead [][]byte
	for i := range changes {
		c := &changes[i]
		history.add(c)
		switch {
		case last[string(c.Key)] != i:
		case c.Version == 0:
			dead = append(dead, blob(c.Key))
		default:
			live.add(c)
		}
	}
	b.Queue(insertRevisions, history.mods, history.subs, history.keys, history.values, history.creates, history.versions,
		history.leases, history.befores, history.beforeSubs)
	if len(live.keys) > 0 {
		b.Queue(upsertKeys, live.keys, live.mods, live.subs, live.creates, live.versions, live.leases)
	}
	if len(dead) > 0 {
		b.Queue(deleteKeys, dead)
	}
}
