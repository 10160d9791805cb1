package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// Alarms implements sqlstore.Engine.
func (e *Engine) Alarms(ctx context.Context) ([]sqlstore.Alarm, error) {
	rows, err := e.pool.Query(ctx, selectAlarms)
	return collectAlarms(rows, err)
}

func collectAlarms(rows pgx.Rows, err error) ([]sqlstore.Alarm, error) {
	if err != nil {
		return nil, wrap(err)
	}
	alarms, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a sqlstore.Alarm, err error) {
		var member int64 // the bits of the unsigned number
		err = row.Scan(&member, &a.Kind)
		a.Member = uint64(member)
		return a, err
	})
	return alarms, wrap(err)
}

// PutAlarm implements sqlstore.Engine.
func (e *Engine) PutAlarm(ctx context.Context, alarm sqlstore.Alarm) error {
	_, err := e.pool.Exec(ctx, insertAlarm, int64(alarm.Member), int64(alarm.Kind))
	return wrap(err)
}

// DeleteAlarm implements sqlstore.Engine.
func (e *Engine) DeleteAlarm(ctx context.Context, alarm sqlstore.Alarm) (found bool, err error) {
	tag, err := e.pool.Exec(ctx, deleteAlarm, int64(alarm.Member), int64(alarm.Kind))
	return tag.RowsAffected() > 0, wrap(err)
}
