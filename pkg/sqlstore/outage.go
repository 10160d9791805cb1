package sqlstore

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// outage logs that the database is away, and that it is back: one line each, however many requests fail in between.
type outage struct {
	log  *slog.Logger
	away atomic.Bool // lets the usual case cost nothing

	mu    sync.Mutex // guards since; taken only when away changes
	since time.Time
}

// saw takes the outcome of a request. Errors that say nothing about the database change nothing.
func (o *outage) saw(err error) {
	away := errors.Is(err, ErrUnavailable) || errors.Is(err, ErrOutcomeUnknown)
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
