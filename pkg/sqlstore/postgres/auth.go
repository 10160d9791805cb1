package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// Auth implements sqlstore.Engine.
func (e *Engine) Auth(ctx context.Context) (state sqlstore.AuthState, err error) {
	var meta sqlstore.Meta
	err = e.read(ctx, func(b *pgx.Batch) {
		queueMeta(b, &meta)
		b.Queue(selectAuth).Query(func(rows pgx.Rows) (err error) {
			state.Entries, err = pgx.CollectRows(rows, scanAuth)
			return err
		})
	})
	state.Generation = meta.AuthGeneration
	return state, err
}

func scanAuth(row pgx.CollectableRow) (e sqlstore.AuthEntry, err error) {
	var key []byte
	err = row.Scan(&e.Bucket, &key, &e.Value)
	e.Key = string(key)
	return e, err
}

func collectAuth(rows pgx.Rows, err error) ([]sqlstore.AuthEntry, error) {
	if err != nil {
		return nil, wrap(err)
	}
	entries, err := pgx.CollectRows(rows, scanAuth)
	return entries, wrap(err)
}

func (t *writeTx) Auth(ctx context.Context) ([]sqlstore.AuthEntry, error) {
	rows, err := t.conn.Query(ctx, selectAuth)
	return collectAuth(rows, err)
}

func (t *writeTx) PutAuth(ctx context.Context, e sqlstore.AuthEntry) (err error) {
	if e.Value == nil {
		_, err = t.conn.Exec(ctx, deleteAuth, e.Bucket, []byte(e.Key))
		return wrap(err)
	}
	_, err = t.conn.Exec(ctx, upsertAuth, e.Bucket, []byte(e.Key), e.Value)
	return wrap(err)
}
