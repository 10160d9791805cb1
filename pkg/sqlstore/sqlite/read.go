package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// subBits is how many bits of an id are the sub.
const subBits = 20

func id(revision sqlstore.Revision, sub int64) int64 { return int64(revision)<<subBits | sub }

// firstID is the id of the first change of a revision; of one beyond the largest there can be, more than any id.
func firstID(revision sqlstore.Revision) int64 {
	if revision > math.MaxInt64>>subBits {
		return math.MaxInt64
	}
	return id(revision, 0)
}

func scanMeta(meta *sqlstore.Meta) func([]driver.Value) error {
	return func(row []driver.Value) error {
		meta.ClusterID = row[0].(int64)
		meta.CurrentRevision = sqlstore.Revision(row[1].(int64))
		meta.CompactRevision = sqlstore.Revision(row[2].(int64))
		meta.AuthGeneration = row[3].(int64)
		return nil
	}
}

// version reads the columns id, create_revision, version, lease, value.
func version(key []byte, row []driver.Value) sqlstore.Row {
	place := row[0].(int64)
	value, _ := row[4].([]byte)
	return sqlstore.Row{
		KeyValue: sqlstore.KeyValue{
			Key: key, Value: value,
			ModRevision:    sqlstore.Revision(place >> subBits),
			CreateRevision: sqlstore.Revision(row[1].(int64)),
			Version:        row[2].(int64),
			Lease:          sqlstore.LeaseID(row[3].(int64)),
		},
		Sub: place & (1<<subBits - 1),
	}
}

func appendRow(rows *[]sqlstore.Row) func([]driver.Value) error {
	return func(row []driver.Value) error {
		*rows = append(*rows, version(row[0].([]byte), row[1:]))
		return nil
	}
}

// Range implements sqlstore.Engine.
func (e *Engine) Range(ctx context.Context, q sqlstore.RangeQuery) (rows sqlstore.RangeRows, err error) {
	if key, ok := q.Point(); ok {
		if known, err := e.point(ctx, key, &rows); known || err != nil {
			return rows, err
		}
		rows = sqlstore.RangeRows{}
	}
	err = e.read(ctx, func(c *conn) error {
		if err := c.query(ctx, selectMeta, scanMeta(&rows.Meta)); err != nil {
			return err
		}
		return c.rangeRows(ctx, q, &rows)
	})
	return rows, err
}

// point reads the newest state of one key, if its version is known. It is one statement, and so one snapshot.
func (e *Engine) point(ctx context.Context, key []byte, rows *sqlstore.RangeRows) (known bool, err error) {
	var place int64
	err = e.withReader(ctx, func(c *conn) error {
		return c.query(ctx, selectPoint, func(row []driver.Value) error {
			place, _ = row[4].(int64) // NULL if there is no key
			return scanMeta(&rows.Meta)(row)
		}, key)
	})
	if err != nil || place == 0 {
		return true, err
	}
	rows.Rows, rows.Count = make([]sqlstore.Row, 1), 1
	return len(e.versions.get([]int64{place}, rows.Rows)) == 0, nil
}

func (c *conn) rangeRows(ctx context.Context, q sqlstore.RangeQuery, rows *sqlstore.RangeRows) (err error) {
	limit := q.Limit
	if limit == 0 {
		limit = -1
	}
	bounds := []driver.Value{q.Start}
	if q.End != nil {
		bounds = append(bounds, q.End)
	}
	if q.Revision > 0 {
		bounds = append(bounds, firstID(q.Revision+1))
	}
	args := append(bounds[:len(bounds):len(bounds)], limit)
	switch q.Fields {
	case sqlstore.AllFields:
		var ids []int64
		if err = c.query(ctx, rangeStatements[q.Form()], func(row []driver.Value) error {
			ids = append(ids, row[0].(int64))
			return nil
		}, args...); err != nil {
			return err
		}
		rows.Rows, err = c.versionRows(ctx, ids)
	case sqlstore.KeyFields:
		err = c.query(ctx, rangeStatements[q.Form()], appendRow(&rows.Rows), args...)
	}
	if err != nil || !q.Count {
		return err
	}
	if q.Fields != sqlstore.NoFields && (limit < 0 || int64(len(rows.Rows)) < limit) {
		rows.Count = int64(len(rows.Rows))
		return nil
	}
	rows.Count, _, err = c.number(ctx, countStatements[q.Form()&^sqlstore.FormKeys], bounds...)
	return err
}

// versionRows returns versions by their ids, from memory where they are known. Those that are not there any more it leaves out.
func (c *conn) versionRows(ctx context.Context, ids []int64) ([]sqlstore.Row, error) {
	rows := make([]sqlstore.Row, len(ids))
	missing := c.versions.get(ids, rows)
	if len(missing) == 0 {
		return rows, nil
	}
	read := make([]sqlstore.Row, 0, len(missing))
	for _, i := range missing {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		before := len(read)
		if err := c.query(uninterrupted, selectVersion, appendRow(&read), ids[i]); err != nil {
			return nil, err
		}
		if len(read) > before {
			rows[i] = read[before]
		}
	}
	if !c.writes {
		c.versions.addAll(read)
	}
	if len(read) < len(missing) {
		rows = slices.DeleteFunc(rows, func(r sqlstore.Row) bool { return r.ModRevision == 0 })
	}
	return rows, nil
}

// Events implements sqlstore.Engine.
func (e *Engine) Events(ctx context.Context, q sqlstore.EventsQuery) (rows sqlstore.EventRows, err error) {
	err = e.read(ctx, func(c *conn) error {
		if err := c.query(ctx, selectMeta, scanMeta(&rows.Meta)); err != nil {
			return err
		}
		return c.events(ctx, q, &rows)
	})
	return rows, err
}

// errEnough ends a query early.
var errEnough = errors.New("enough rows")

func (c *conn) events(ctx context.Context, q sqlstore.EventsQuery, rows *sqlstore.EventRows) error {
	statement, args := selectEventsFrom, []driver.Value{q.Start}
	if q.End != nil {
		statement, args = selectEvents, append(args, q.End)
	}
	through := int64(math.MaxInt64)
	if q.Through > 0 {
		through = firstID(q.Through + 1)
	}
	limit := int64(-1)
	if q.Limit > 0 {
		limit = int64(q.Limit) + 1 // one more tells whether there are more
	}
	bytes := 0
	err := c.query(ctx, statement, func(row []driver.Value) error {
		if q.Limit > 0 && len(rows.Events) == q.Limit || q.LimitBytes > 0 && bytes >= q.LimitBytes {
			rows.More = true
			return errEnough
		}
		key := row[0].([]byte)
		event := &sqlstore.Event{KV: version(key, row[1:6]).KeyValue}
		if event.KV.Version == 0 {
			event.Type = sqlstore.EventDelete
			event.KV.Value = nil
		}
		bytes += len(key) + len(event.KV.Value)
		if row[6] != nil {
			prev := version(key, row[6:11]).KeyValue
			event.Prev = &prev
			bytes += len(prev.Value)
		}
		rows.Events = append(rows.Events, event)
		return nil
	}, append(args, firstID(q.From), through, limit)...)
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// Leases implements sqlstore.Engine.
func (e *Engine) Leases(ctx context.Context) (leases []sqlstore.Lease, err error) {
	err = e.read(ctx, func(c *conn) error {
		leases, err = c.leases(ctx)
		return err
	})
	return leases, err
}

func (c *conn) leases(ctx context.Context) (leases []sqlstore.Lease, err error) {
	err = c.query(ctx, selectLeases, func(row []driver.Value) error {
		leases = append(leases, lease(row))
		return nil
	})
	return leases, err
}

func lease(row []driver.Value) sqlstore.Lease {
	return sqlstore.Lease{ID: sqlstore.LeaseID(row[0].(int64)), TTL: row[1].(int64), Keepalives: row[2].(int64)}
}

// LeaseKeys implements sqlstore.Engine.
func (e *Engine) LeaseKeys(ctx context.Context, id sqlstore.LeaseID) (keys [][]byte, err error) {
	err = e.read(ctx, func(c *conn) error {
		keys, err = c.leaseKeys(ctx, id)
		return err
	})
	return keys, err
}

func (c *conn) leaseKeys(ctx context.Context, id sqlstore.LeaseID) (keys [][]byte, err error) {
	err = c.query(ctx, selectLeaseKeys, func(row []driver.Value) error {
		keys = append(keys, row[0].([]byte))
		return nil
	}, int64(id))
	return keys, err
}

// Size implements sqlstore.Engine.
func (e *Engine) Size(ctx context.Context) (total, inUse int64, err error) {
	err = e.read(ctx, func(c *conn) error {
		total, inUse, err = c.size(ctx)
		return err
	})
	return total, inUse, err
}

func (c *conn) size(ctx context.Context) (total, inUse int64, err error) {
	var size, pages, free int64
	for _, n := range []struct {
		pragma string
		value  *int64
	}{{pageSize, &size}, {pageCount, &pages}, {freePages, &free}} {
		if *n.value, _, err = c.number(ctx, n.pragma); err != nil {
			return 0, 0, err
		}
	}
	return pages * size, (pages - free) * size, nil
}

// Describe implements sqlstore.Engine. The file is ours alone, so there is one server.
func (e *Engine) Describe(ctx context.Context) (d sqlstore.Description, err error) {
	d.Servers = 1
	err = e.read(ctx, func(c *conn) error {
		if err := c.query(ctx, selectEngineVersion, func(row []driver.Value) error {
			d.Version = row[0].(string)
			return nil
		}); err != nil {
			return err
		}
		if err := c.query(ctx, selectMeta, scanMeta(&d.Meta)); err != nil {
			return err
		}
		if err := c.query(ctx, selectCompaction, func(row []driver.Value) error {
			d.Reached = sqlstore.Revision(row[0].(int64))
			if revision := row[1].(int64); revision > 0 {
				d.LastCompaction = sqlstore.Compaction{
					Revision: sqlstore.Revision(revision), Began: time.UnixMicro(row[2].(int64)), Ended: time.UnixMicro(row[3].(int64)),
				}
			}
			return nil
		}); err != nil {
			return err
		}
		d.SizeBytes, d.InUseBytes, err = c.size(ctx)
		return err
	})
	return d, err
}

// Check implements sqlstore.Engine. The file is ours alone, so its schema is still what Open found.
func (e *Engine) Check(ctx context.Context) error {
	return e.read(ctx, func(c *conn) error {
		var meta sqlstore.Meta
		return c.query(ctx, selectMeta, scanMeta(&meta))
	})
}

// read runs fn in a read transaction: one snapshot (I4). It holds the snapshot only while fn runs, and fn has its rows in memory
// when it returns, so no slow client keeps the WAL from being checkpointed.
func (e *Engine) read(ctx context.Context, fn func(*conn) error) error {
	return e.withReader(ctx, func(c *conn) error {
		if _, err := c.exec(ctx, begin); err != nil {
			return err
		}
		return errors.Join(fn(c), c.rollback())
	})
}

func (e *Engine) withReader(ctx context.Context, fn func(*conn) error) error {
	select {
	case c := <-e.readers:
		defer func() { e.readers <- c }()
		return fn(c)
	case <-e.closed:
		return sqlstore.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}
