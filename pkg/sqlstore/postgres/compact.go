package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// DeleteHistory implements sqlstore.Engine. The lock on the one row of compaction makes servers take turns; writers do not wait for
// it.
func (e *Engine) DeleteHistory(ctx context.Context, limit int) (done bool, err error) {
	var meta sqlstore.Meta
	var reached sqlstore.Revision
	if err := e.read(ctx, func(b *pgx.Batch) {
		queueMeta(b, &meta)
		b.Queue(selectReached).QueryRow(func(row pgx.Row) error { return row.Scan(&reached) })
	}); err != nil {
		return false, err
	}
	if reached >= meta.CompactRevision {
		return true, nil
	}
	compact := meta.CompactRevision
	err = pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, lockReached, e.timeoutSetting()).Scan(&reached, nil, nil); err != nil {
			return err
		}
		if reached >= compact { // another server was faster
			done = true
			return nil
		}
		through := compact
		switch err := tx.QueryRow(ctx, selectSliceEnd, reached, compact, limit).Scan(&through); {
		case errors.Is(err, pgx.ErrNoRows): // the rest is less than a slice
		case err != nil:
			return err
		}
		b := &pgx.Batch{}
		// Changes at the compact revision stay for those who watch from there, and go with the next compaction: so this one
		// begins with the revision that the last one reached.
		b.Queue(deleteReplaced, reached, through, compact)
		b.Queue(deleteTombstones, reached, through, compact)
		b.Queue(updateReached, through, compact)
		done = through >= compact
		return tx.SendBatch(ctx, b).Close()
	})
	return done && err == nil, wrap(e.inTime(err))
}
