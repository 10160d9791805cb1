package sqlite

import (
	"context"
	"database/sql/driver"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// Snapshot implements sqlstore.Engine. While it lasts the WAL grows with what is written.
func (e *Engine) Snapshot(ctx context.Context, fn func(sqlstore.Snapshot) error) error {
	return e.read(ctx, func(c *conn) error {
		s := snapshot{c: c}
		if err := c.query(ctx, selectMeta, scanMeta(&s.meta)); err != nil {
			return err
		}
		return fn(&s)
	})
}

// snapshot reads in the transaction that is open on a connection.
type snapshot struct {
	c    *conn
	meta sqlstore.Meta
}

func (s *snapshot) Meta() sqlstore.Meta { return s.meta }

func (s *snapshot) Range(ctx context.Context, q sqlstore.RangeQuery) (sqlstore.RangeRows, error) {
	rows := sqlstore.RangeRows{Meta: s.meta}
	return rows, s.c.rangeRows(ctx, q, &rows)
}

func (s *snapshot) Leases(ctx context.Context) ([]sqlstore.Lease, error) { return s.c.leases(ctx) }

func (s *snapshot) Alarms(ctx context.Context) ([]sqlstore.Alarm, error)   { return s.c.alarms(ctx) }
func (s *snapshot) Auth(ctx context.Context) ([]sqlstore.AuthEntry, error) { return s.c.auth(ctx) }

func (s *snapshot) History(ctx context.Context, q sqlstore.HistoryQuery, visit func(*sqlstore.Row) error) error {
	scan := func(row []driver.Value) error {
		r := version(row[0].([]byte), row[1:])
		return visit(&r)
	}
	above := firstID(q.Compact + 1)
	through := firstID(q.Through + 1)
	if err := s.c.query(ctx, selectKept, scan, firstID(q.Compact), min(above, through), firstID(q.LiveAt+1)); err != nil {
		return err
	}
	return s.c.query(ctx, selectVersions, scan, above, through)
}
