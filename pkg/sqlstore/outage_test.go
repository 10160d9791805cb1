package sqlstore

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestRetryingIsLoggedUnlessTheDatabaseIsAway(t *testing.T) {
	var log bytes.Buffer
	o := &outage{log: slog.New(slog.NewTextHandler(&log, nil))}
	o.retrying(fmt.Errorf("%w: connection refused", ErrUnavailable), "could not work")
	o.retrying(ErrOutcomeUnknown, "could not work")
	o.retrying(ErrNoSpace, "could not work", "lease", 7)
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 1 || !strings.Contains(lines[0], `msg="could not work, will try again" lease=7 error=`) {
		t.Errorf("logged:\n%s", log.String())
	}
}

func TestOutageIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	o := &outage{log: slog.New(slog.NewTextHandler(&log, nil))}
	for _, err := range []error{
		nil,
		ErrCompacted,
		fmt.Errorf("%w: connection refused", ErrUnavailable),
		fmt.Errorf("%w: connection refused", ErrUnavailable),
		ErrKeyNotFound, // of a request that needed no database
		errors.New("anything"),
		ErrOutcomeUnknown,
		nil,
		nil,
	} {
		o.saw(err)
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "connection refused") || !strings.Contains(lines[1], "answers again") {
		t.Errorf("got %d lines, want one at the beginning and one at the end:\n%s", len(lines), log.String())
	}
}
