package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// read sends statements as one read transaction, one snapshot (I4), in one round trip.
func (e *Engine) read(ctx context.Context, queue func(*pgx.Batch)) error {
	b := &pgx.Batch{}
	b.Queue(beginRead)
	queue(b)
	b.Queue(commit)
	return wrap(e.pool.SendBatch(ctx, b).Close())
}

func queueMeta(b *pgx.Batch, meta *sqlstore.Meta) {
	b.Queue(selectMeta).QueryRow(func(row pgx.Row) error { return scanMeta(row, meta) })
}

func scanMeta(row pgx.Row, meta *sqlstore.Meta) error {
	return row.Scan(&meta.ClusterID, &meta.CurrentRevision, &meta.CompactRevision, &meta.AuthGeneration)
}

// columnsOf is where Scan puts the columns of a row. pgx scans named types by reflection, so it is not shown them: that would be a tenth of
// the time of a list.
func columnsOf(r *sqlstore.Row) []any {
	return []any{&r.Key, (*int64)(&r.ModRevision), &r.Sub, (*int64)(&r.CreateRevision), &r.Version, (*int64)(&r.Lease), &r.Value}
}

func scanRow(rows pgx.Rows) (r sqlstore.Row, err error) {
	err = rows.Scan(columnsOf(&r)...)
	return r, err
}

// appendRows makes a callback that reads rows; the batch checks rows.Err after it.
func appendRows(dst *[]sqlstore.Row) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var r sqlstore.Row
		columns := columnsOf(&r)
		for rows.Next() {
			if err := rows.Scan(columns...); err != nil {
				return err
			}
			*dst = append(*dst, r)
		}
		return nil
	}
}

// Range implements sqlstore.Engine.
func (e *Engine) Range(ctx context.Context, q sqlstore.RangeQuery) (rows sqlstore.RangeRows, err error) {
	if key, ok := q.Point(); ok {
		return e.point(ctx, key)
	}
	err = e.read(ctx, func(b *pgx.Batch) {
		queueMeta(b, &rows.Meta)
		queueRange(b, q, &rows)
	})
	return rows, err
}

func (e *Engine) point(ctx context.Context, key []byte) (rows sqlstore.RangeRows, err error) {
	var v nullableVersion
	m := &rows.Meta
	err = e.pool.QueryRow(ctx, selectPoint, blob(key)).Scan(&m.ClusterID, &m.CurrentRevision, &m.CompactRevision, &m.AuthGeneration,
		&v.key, &v.mod, &v.sub, &v.create, &v.version, &v.lease, &v.value)
	if err != nil {
		return rows, wrap(err)
	}
	if v.mod != nil {
		rows.Rows = []sqlstore.Row{{KeyValue: v.keyValue(v.key), Sub: *v.sub}}
		rows.Count = 1
	}
	return rows, nil
}

// nullableVersion is a version from the outer side of a join: its columns are NULL where there is none.
type nullableVersion struct {
	key         []byte
	mod, create *sqlstore.Revision
	sub         *int64
	version     *int64
	lease       *sqlstore.LeaseID
	value       []byte
}

// keyValue may be called if mod is not nil.
func (v *nullableVersion) keyValue(key []byte) sqlstore.KeyValue {
	return sqlstore.KeyValue{
		Key: key, Value: v.value, ModRevision: *v.mod, CreateRevision: *v.create, Version: *v.version, Lease: *v.lease,
	}
}

func queueRange(b *pgx.Batch, q sqlstore.RangeQuery, rows *sqlstore.RangeRows) {
	bounds := []any{blob(q.Start)}
	if q.End != nil {
		bounds = append(bounds, q.End)
	}
	if q.Revision > 0 {
		bounds = append(bounds, q.Revision)
	}
	if q.Fields != sqlstore.NoFields {
		b.Queue(rangeStatements[q.Form()], append(bounds[:len(bounds):len(bounds)], limit(q.Limit))...).Query(appendRows(&rows.Rows))
	}
	if q.Count {
		b.Queue(countStatements[q.Form()&^sqlstore.FormKeys], bounds...).QueryRow(func(row pgx.Row) error { return row.Scan(&rows.Count) })
	}
}

func limit(n int64) *int64 {
	if n == 0 {
		return nil
	}
	return &n
}

// Events implements sqlstore.Engine.
func (e *Engine) Events(ctx context.Context, q sqlstore.EventsQuery) (rows sqlstore.EventRows, err error) {
	statement, args := selectEventsFrom, []any{blob(q.Start)}
	if q.End != nil {
		statement, args = selectEvents, append(args, q.End)
	}
	through := q.Through
	if through == 0 {
		through = 1<<63 - 1
	}
	n := int64(q.Limit)
	if n > 0 {
		n++ // one more tells whether there are more
	}
	err = e.read(ctx, func(b *pgx.Batch) {
		queueMeta(b, &rows.Meta)
		b.Queue(statement, append(args, q.From, through, limit(n))...).Query(func(r pgx.Rows) error {
			return scanEvents(r, q, &rows)
		})
	})
	return rows, err
}

func scanEvents(r pgx.Rows, q sqlstore.EventsQuery, rows *sqlstore.EventRows) error {
	bytes := 0
	for r.Next() {
		if q.Limit > 0 && len(rows.Events) == q.Limit || q.LimitBytes > 0 && bytes >= q.LimitBytes {
			rows.More = true
			return nil
		}
		event := &sqlstore.Event{}
		kv := &event.KV
		var sub int64
		var prev nullableVersion
		if err := r.Scan(&kv.Key, &kv.ModRevision, &sub, &kv.CreateRevision, &kv.Version, &kv.Lease, &kv.Value,
			&prev.mod, &prev.sub, &prev.create, &prev.version, &prev.lease, &prev.value); err != nil {
			return err
		}
		if kv.Version == 0 {
			event.Type = sqlstore.EventDelete
			kv.Value = nil
		}
		if prev.mod != nil {
			previous := prev.keyValue(kv.Key)
			event.Prev = &previous
		}
		bytes += len(kv.Key) + len(kv.Value) + len(prev.value)
		rows.Events = append(rows.Events, event)
	}
	return nil
}

// Leases implements sqlstore.Engine.
func (e *Engine) Leases(ctx context.Context) ([]sqlstore.Lease, error) {
	rows, err := e.pool.Query(ctx, selectLeases)
	return collectLeases(rows, err)
}

func collectLeases(rows pgx.Rows, err error) ([]sqlstore.Lease, error) {
	if err != nil {
		return nil, wrap(err)
	}
	leases, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l sqlstore.Lease, err error) {
		return l, row.Scan(&l.ID, &l.TTL, &l.Keepalives)
	})
	return leases, wrap(err)
}

// LeaseKeys implements sqlstore.Engine.
func (e *Engine) LeaseKeys(ctx context.Context, id sqlstore.LeaseID) ([][]byte, error) {
	rows, err := e.pool.Query(ctx, selectLeaseKeys, id)
	return collectKeys(rows, err)
}

func collectKeys(rows pgx.Rows, err error) ([][]byte, error) {
	if err != nil {
		return nil, wrap(err)
	}
	keys, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	return keys, wrap(err)
}

// Size implements sqlstore.Engine. Postgres reuses the space of deleted rows but does not say cheaply how much there is, so all of
// it counts as in use.
func (e *Engine) Size(ctx context.Context) (total, inUse int64, err error) {
	err = e.pool.QueryRow(ctx, selectSize).Scan(&total, nil)
	return total, total, wrap(err)
}

// Describe implements sqlstore.Engine.
func (e *Engine) Describe(ctx context.Context) (d sqlstore.Description, err error) {
	var last sqlstore.Compaction
	err = e.read(ctx, func(b *pgx.Batch) {
		queueMeta(b, &d.Meta)
		b.Queue(selectCompaction).QueryRow(func(row pgx.Row) error {
			return row.Scan(&d.Reached, &last.Revision, &last.Began, &last.Ended)
		})
		b.Queue(selectEngineVersion).QueryRow(func(row pgx.Row) error { return row.Scan(&d.Version) })
		b.Queue(selectSize).QueryRow(func(row pgx.Row) error { return row.Scan(&d.SizeBytes, &d.DeadRows) })
		b.Queue(countServers, e.server).QueryRow(func(row pgx.Row) error { return row.Scan(&d.Servers) })
	})
	if last.Revision > 0 {
		d.LastCompaction = last
	}
	d.InUseBytes = d.SizeBytes
	return d, err
}

// blob makes sure that an empty key or value is empty and not NULL.
func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
