package postgres

import "context"

// Defragment implements sqlstore.Engine. It lets later writes have the space of dead rows, as autovacuum does, now. Only what is free
// at the end of a table goes back to the file system: more would need VACUUM FULL, which keeps everybody out.
func (e *Engine) Defragment(ctx context.Context) error {
	_, err := e.pool.Exec(ctx, vacuum)
	return wrap(err)
}
