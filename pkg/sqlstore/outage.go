package sqlstore

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// outage logs that the database is away, and that it is back: one line each, however much fails in between.
type outage struct {
	log  *slog.Logger
	away atomic.Bool // lets the usual case cost nothing

	mu    sync.Mutex // guards since; taken only when away changes
	since time.Time
}

// saw takes the outcome of a request or of work in the background. Errors that say nothing about the database change nothing.
func (o *outage) saw(err error) {
	away := unanswered(err)
	if away == o.away.Load() || err != nil && !away {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.away.CompareAndSwap(!away, away) {
		return
	}
	if away {
		o.since = time.Now()
		o.log.Error("the database does not answer, requests fail until it does", "error", err)
		return
	}
	o.log.Error("the database answers again", "away", time.Since(o.since).Round(time.Millisecond).String())
}

// retrying logs what work in the background could not do. That the database is away is not worth a line each time: saw said it.
func (o *outage) retrying(err error, what string, args ...any) {
	if !unanswered(err) {
		o.log.Warn(what+", will try again", append(args, "error", err)...)
	}
}

func unanswered(err error) bool {
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrOutcomeUnknown)
}
