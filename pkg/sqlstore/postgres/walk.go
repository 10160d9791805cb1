package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// Walk implements sqlstore.Engine.
func (e *Engine) Walk(ctx context.Context, v sqlstore.Visitor) error {
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return wrap(pgx.BeginTxFunc(ctx, e.pool, snapshot, func(tx pgx.Tx) error {
		var meta sqlstore.Meta
		var reached sqlstore.Revision
		if err := scanMeta(tx.QueryRow(ctx, selectMeta), &meta); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, selectReached).Scan(&reached); err != nil {
			return err
		}
		if err := v.Meta(meta, reached); err != nil {
			return err
		}
		if err := each(ctx, tx, func(rows pgx.Rows) error {
			var l sqlstore.Lease
			if err := rows.Scan(&l.ID, &l.TTL, &l.Keepalives); err != nil {
				return err
			}
			return v.Lease(l)
		}, selectLeases); err != nil {
			return err
		}
		if err := each(ctx, tx, func(rows pgx.Rows) error {
			var c sqlstore.Change
			if err := rows.Scan(&c.Key, &c.ModRevision, &c.Sub, &c.CreateRevision, &c.Version, &c.Lease, &c.Value,
				&c.PrevRevision, &c.PrevSub); err != nil {
				return err
			}
			return v.Change(&c)
		}, selectHistory); err != nil {
			return err
		}
		return each(ctx, tx, func(rows pgx.Rows) error {
			key, err := scanRow(rows)
			if err != nil {
				return err
			}
			return v.Key(&key)
		}, rangeKeysFrom, []byte{}, limit(0))
	}))
}

// each calls fn for each row of a query as it arrives.
func each(ctx context.Context, tx pgx.Tx, fn func(pgx.Rows) error, statement string, args ...any) error {
	rows, err := tx.Query(ctx, statement, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := fn(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
