package postgres

import (
	"context"
	"errors"
	"time"
)

// endAbandoned ends sessions that keep others from their turn, at writing or at compaction, and wait for a client that is gone without a
// word to Postgres. Between statements idle_in_transaction_session_timeout ends them, but not while a batch of which half has arrived
// waits for the rest. A session that works, or waits for a standby or for a lock, is left alone; so is one of another role, which only
// TCP can end.
func (e *Engine) endAbandoned() {
	ctx, cancel := context.WithTimeout(context.Background(), abandonedTimeout)
	defer cancel()
	// A transaction has all of the write timeout, and its client began to count before Postgres did.
	age := e.writeTimeout - e.writeTimeout/10
	tag, err := e.pool.Exec(ctx, endAbandoned, age)
	if err == nil && tag.RowsAffected() > 0 { // else whoever waits next looks again
		e.log.Warn("ended abandoned sessions in Postgres", "sessions", tag.RowsAffected())
	}
}

// abandonedTimeout bounds one look for abandoned sessions.
const abandonedTimeout = 2 * time.Second

// inTime passes an error on, and when it is that a turn did not come in time sees to the next one's.
func (e *Engine) inTime(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		e.endAbandoned()
	}
	return err
}
