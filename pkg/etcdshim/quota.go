package etcdshim

import (
	"context"
	"sync"
	"time"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// quota knows whether the database is larger than it may be.
type quota struct {
	store *sqlstore.Store
	limit int64 // bytes; 0: none

	mu    sync.Mutex // guards the rest
	asked time.Time
	over  bool
}

// quotaInterval is how long a size counts: the limit is a line in the sand, not a ruler.
const quotaInterval = time.Second

func newQuota(store *sqlstore.Store, limit int64) *quota { return &quota{store: store, limit: limit} }

// exceeded says what was so at most age ago.
func (q *quota) exceeded(ctx context.Context, age time.Duration) bool {
	if q.limit <= 0 {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Since(q.asked) < age {
		return q.over
	}
	// The part in use counts: what compaction freed is there to be written to.
	if _, inUse, err := q.store.Size(ctx); err == nil {
		q.over = inUse > q.limit
		q.asked = time.Now()
	}
	return q.over
}
