package sqlite

import (
	"context"
	"database/sql/driver"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// writeTx is a transaction on the writer connection.
type writeTx struct {
	e       *Engine
	c       *conn
	meta    sqlstore.Meta
	written []sqlstore.Change
	done    bool
}

// Begin implements sqlstore.Engine.
func (e *Engine) Begin(ctx context.Context, keys [][]byte) (sqlstore.WriteTx, []sqlstore.Row, error) {
	c, err := e.acquireWriter(ctx)
	if err != nil {
		return nil, nil, err
	}
	tx := &writeTx{e: e, c: c}
	if err := c.query(ctx, selectMeta, scanMeta(&tx.meta)); err != nil {
		tx.Rollback()
		return nil, nil, err
	}
	rows, err := tx.Get(ctx, keys)
	if err != nil {
		tx.Rollback()
		return nil, nil, err
	}
	return tx, rows, nil
}

func (e *Engine) acquireWriter(ctx context.Context) (*conn, error) {
	var c *conn
	select {
	case c = <-e.writer:
	case <-e.closed:
		return nil, sqlstore.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if _, err := c.exec(ctx, beginImmediate); err != nil {
		e.writer <- c
		return nil, err
	}
	return c, nil
}

func (t *writeTx) Meta() sqlstore.Meta { return t.meta }

// uninterrupted is for statements on one row: they take microseconds, as much as it would take to have each interrupted when ctx ends.
var uninterrupted = context.Background()

func (t *writeTx) Get(ctx context.Context, keys [][]byte) (rows []sqlstore.Row, err error) {
	var ids []int64
	for _, key := range keys {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		place, found, err := t.c.number(uninterrupted, selectKey, key)
		if err != nil {
			return nil, err
		}
		if found {
			ids = append(ids, place)
		}
	}
	return t.c.versionRows(ctx, ids)
}

func (t *writeTx) Range(ctx context.Context, q sqlstore.RangeQuery) (rows sqlstore.RangeRows, err error) {
	rows.Meta = t.meta
	return rows, t.c.rangeRows(ctx, q, &rows)
}

func (t *writeTx) Lease(ctx context.Context, id sqlstore.LeaseID) (l sqlstore.Lease, err error) {
	found := false
	err = t.c.query(ctx, selectLease, func(row []driver.Value) error {
		l, found = lease(row), true
		return nil
	}, int64(id))
	if err == nil && !found {
		err = sqlstore.ErrLeaseNotFound
	}
	return l, err
}

func (t *writeTx) LeaseKeys(ctx context.Context, id sqlstore.LeaseID) ([][]byte, error) {
	return t.c.leaseKeys(ctx, id)
}

func (t *writeTx) PutLease(ctx context.Context, l sqlstore.Lease) error {
	_, err := t.c.exec(ctx, upsertLease, int64(l.ID), l.TTL, l.Keepalives)
	return err
}

func (t *writeTx) DeleteLease(ctx context.Context, id sqlstore.LeaseID) error {
	_, err := t.c.exec(ctx, deleteLease, int64(id))
	return err
}

func (t *writeTx) Write(ctx context.Context, changes []sqlstore.Change) error {
	t.written = append(t.written, changes...)
	last := make(map[string]int, len(changes)) // only a key's last change matters to its live row
	for i := range changes {
		last[string(changes[i].Key)] = i
	}
	for i := range changes {
		if err := ctx.Err(); err != nil {
			return err
		}
		c := &changes[i]
		place := id(c.ModRevision, c.Sub)
		if _, err := t.c.exec(uninterrupted, insertRevision, place, c.Key, c.Value, int64(c.CreateRevision), c.Version, int64(c.Lease),
			id(c.PrevRevision, c.PrevSub)); err != nil {
			return err
		}
		if last[string(c.Key)] != i {
			continue
		}
		var err error
		if c.Version == 0 {
			_, err = t.c.exec(uninterrupted, deleteKey, c.Key)
		} else {
			_, err = t.c.exec(uninterrupted, upsertKey, c.Key, place, int64(c.CreateRevision), c.Version, int64(c.Lease))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *writeTx) Commit(ctx context.Context, changes []sqlstore.Change, meta sqlstore.Meta) error {
	if err := t.Write(ctx, changes); err != nil {
		return err
	}
	if meta.CompactRevision != t.meta.CompactRevision || meta.AuthGeneration != t.meta.AuthGeneration {
		if _, err := t.c.exec(uninterrupted, updateMeta, int64(meta.CurrentRevision), int64(meta.CompactRevision), meta.AuthGeneration); err != nil {
			return err
		}
	}
	// If the commit were interrupted its outcome would be unknown.
	if _, err := t.c.exec(uninterrupted, commit); err != nil {
		return err
	}
	for i := range t.written {
		t.e.versions.add(&t.written[i].Row)
	}
	t.release()
	return nil
}

// Committed implements sqlstore.WriteTx. A commit in the own process fails or succeeds; its outcome is never unknown.
func (t *writeTx) Committed(context.Context) (bool, error) { return false, nil }

func (t *writeTx) Rollback() {
	if t.done {
		return
	}
	if err := t.c.rollback(); err != nil {
		t.e.log.Error("rollback failed", "error", err)
	}
	t.release()
}

func (t *writeTx) release() {
	t.done = true
	t.e.writer <- t.c
}
