package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// Snapshot implements sqlstore.Engine. While it lasts no dead row of the database can be vacuumed.
func (e *Engine) Snapshot(ctx context.Context, fn func(sqlstore.Snapshot) error) error {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	var failed error // of fn, which is not the database's
	err := pgx.BeginTxFunc(ctx, e.pool, options, func(tx pgx.Tx) error {
		s := snapshot{tx: tx}
		if err := scanMeta(tx.QueryRow(ctx, selectMeta), &s.meta); err != nil {
			return err
		}
		failed = fn(&s)
		return failed
	})
	if failed != nil {
		return failed
	}
	return wrap(err)
}

// snapshot reads in an open transaction.
type snapshot struct {
	tx   pgx.Tx
	meta sqlstore.Meta
}

func (s *snapshot) Meta() sqlstore.Meta { return s.meta }

func (s *snapshot) Range(ctx context.Context, q sqlstore.RangeQuery) (sqlstore.RangeRows, error) {
	rows := sqlstore.RangeRows{Meta: s.meta}
	b := &pgx.Batch{}
	queueRange(b, q, &rows)
	return rows, wrap(s.tx.SendBatch(ctx, b).Close())
}

func (s *snapshot) Leases(ctx context.Context) ([]sqlstore.Lease, error) {
	rows, err := s.tx.Query(ctx, selectLeases)
	return collectLeases(rows, err)
}

func (s *snapshot) Alarms(ctx context.Context) ([]sqlstore.Alarm, error) {
	rows, err := s.tx.Query(ctx, selectAlarms)
	return collectAlarms(rows, err)
}

func (s *snapshot) Auth(ctx context.Context) ([]sqlstore.AuthEntry, error) {
	rows, err := s.tx.Query(ctx, selectAuth)
	return collectAuth(rows, err)
}

func (s *snapshot) History(ctx context.Context, q sqlstore.HistoryQuery, visit func(*sqlstore.Row) error) error {
	var failed error // of visit
	scan := func(rows pgx.Rows) error {
		r, err := scanRow(rows)
		if err != nil {
			return err
		}
		failed = visit(&r)
		return failed
	}
	var err error
	if q.Through >= q.Compact { // below it nothing is asked for
		err = each(ctx, s.tx, scan, selectKept, q.Compact, q.LiveAt)
	}
	if err == nil {
		err = each(ctx, s.tx, scan, selectVersions, q.Compact, q.Through)
	}
	if failed != nil {
		return failed
	}
	return wrap(err)
}
