package sqlite

import (
	"context"
	"database/sql/driver"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// Walk implements sqlstore.Engine.
func (e *Engine) Walk(ctx context.Context, v sqlstore.Visitor) error {
	return e.read(ctx, func(c *conn) error {
		var meta sqlstore.Meta
		if err := c.query(ctx, selectMeta, scanMeta(&meta)); err != nil {
			return err
		}
		reached, _, err := c.number(ctx, selectReached)
		if err != nil {
			return err
		}
		if err := v.Meta(meta, sqlstore.Revision(reached)); err != nil {
			return err
		}
		if err := c.query(ctx, selectLeases, func(row []driver.Value) error { return v.Lease(lease(row)) }); err != nil {
			return err
		}
		if err := c.query(ctx, selectHistory, func(row []driver.Value) error {
			previous := row[6].(int64)
			return v.Change(&sqlstore.Change{
				Row:          version(row[0].([]byte), row[1:6]),
				PrevRevision: sqlstore.Revision(previous >> subBits),
				PrevSub:      previous & (1<<subBits - 1),
			})
		}); err != nil {
			return err
		}
		return c.query(ctx, rangeKeysFrom, func(row []driver.Value) error {
			key := version(row[0].([]byte), row[1:])
			return v.Key(&key)
		}, []byte(nil), int64(-1))
	})
}
