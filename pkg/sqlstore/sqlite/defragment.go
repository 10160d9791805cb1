package sqlite

import (
	"context"
	"database/sql/driver"
	"time"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// Defragment implements sqlstore.Engine. Free pages, those that DeleteHistory keeps too, go back to the file system, 1 MiB at a time;
// between, writers have the database for as long as that took. Pages that are partly filled stay as they are: packing them would
// mean to write the whole file anew, with all writers kept out.
func (e *Engine) Defragment(ctx context.Context) error {
	for {
		began := time.Now()
		var free int64
		if err := e.read(ctx, func(c *conn) (err error) {
			free, _, err = c.number(ctx, freePages)
			return err
		}); err != nil {
			return err
		}
		if free == 0 {
			return e.checkpoint(ctx)
		}
		if err := e.releaseSpace(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Since(began)):
		}
	}
}

func (e *Engine) checkpoint(ctx context.Context) error {
	select {
	case c := <-e.writer:
		defer func() { e.writer <- c }()
		return c.query(ctx, checkpoint, func([]driver.Value) error { return nil })
	case <-e.closed:
		return sqlstore.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}
