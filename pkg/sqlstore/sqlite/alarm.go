package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// Alarms implements sqlstore.Engine.
func (e *Engine) Alarms(ctx context.Context) (alarms []sqlstore.Alarm, err error) {
	err = e.withReader(ctx, func(c *conn) error {
		alarms, err = c.alarms(ctx)
		return err
	})
	return alarms, err
}

func (c *conn) alarms(ctx context.Context) (alarms []sqlstore.Alarm, err error) {
	err = c.query(ctx, selectAlarms, func(row []driver.Value) error {
		alarms = append(alarms, sqlstore.Alarm{Member: uint64(row[0].(int64)), Kind: sqlstore.AlarmKind(row[1].(int64))})
		return nil
	})
	return alarms, err
}

// PutAlarm implements sqlstore.Engine.
func (e *Engine) PutAlarm(ctx context.Context, alarm sqlstore.Alarm) error {
	_, err := e.write(ctx, insertAlarm, int64(alarm.Member), int64(alarm.Kind))
	return err
}

// DeleteAlarm implements sqlstore.Engine.
func (e *Engine) DeleteAlarm(ctx context.Context, alarm sqlstore.Alarm) (found bool, err error) {
	n, err := e.write(ctx, deleteAlarm, int64(alarm.Member), int64(alarm.Kind))
	return n > 0, err
}

// write runs one statement as a transaction of its own, outside the order of revisions.
func (e *Engine) write(ctx context.Context, text string, args ...driver.Value) (changed int64, err error) {
	c, err := e.acquireWriter(ctx)
	if err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, c.rollback())
		e.writer <- c
	}()
	if changed, err = c.exec(ctx, text, args...); err != nil {
		return 0, err
	}
	_, err = c.exec(ctx, commit)
	return changed, err
}
