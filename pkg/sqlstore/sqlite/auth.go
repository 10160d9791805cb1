package sqlite

import (
	"context"
	"database/sql/driver"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// Auth implements sqlstore.Engine.
func (e *Engine) Auth(ctx context.Context) (state sqlstore.AuthState, err error) {
	err = e.read(ctx, func(c *conn) error {
		var meta sqlstore.Meta
		if err := c.query(ctx, selectMeta, scanMeta(&meta)); err != nil {
			return err
		}
		state.Generation = meta.AuthGeneration
		state.Entries, err = c.auth(ctx)
		return err
	})
	return state, err
}

func (c *conn) auth(ctx context.Context) (entries []sqlstore.AuthEntry, err error) {
	err = c.query(ctx, selectAuth, func(row []driver.Value) error {
		value, _ := row[2].([]byte)
		entries = append(entries, sqlstore.AuthEntry{Bucket: row[0].(string), Key: string(row[1].([]byte)), Value: value})
		return nil
	})
	return entries, err
}

func (t *writeTx) Auth(ctx context.Context) ([]sqlstore.AuthEntry, error) { return t.c.auth(ctx) }

func (t *writeTx) PutAuth(ctx context.Context, e sqlstore.AuthEntry) (err error) {
	if e.Value == nil {
		_, err = t.c.exec(ctx, deleteAuth, e.Bucket, []byte(e.Key))
		return err
	}
	_, err = t.c.exec(ctx, upsertAuth, e.Bucket, []byte(e.Key), e.Value)
	return err
}
