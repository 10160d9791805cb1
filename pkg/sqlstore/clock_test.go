package sqlstore

import (
	"strings"
	"testing"
	"time"
)

// TestLeasesCountDownOnTheMonotonicClock: time.Time compares by the monotonic clock if both sides have a reading of it, so a deadline
// that has one is not moved by a step of the wall clock. A real step needs root and would hit all processes of the machine, and a Go
// program reads the clock past libfaketime.
func TestLeasesCountDownOnTheMonotonicClock(t *testing.T) {
	l := newLessor(&Store{})
	lease := Lease{ID: 1, TTL: 60}
	l.saw(lease)
	deadline := l.leases[lease.ID].deadline
	if !strings.Contains(deadline.String(), " m=") {
		t.Fatalf("the deadline %v has no monotonic reading", deadline)
	}
	now := time.Now()
	if due, next := l.due(now); len(due) != 0 || !strings.Contains(next.String(), " m=") {
		t.Errorf("at once %v are due, and the next look is at %v", due, next)
	}
	if due, next := l.due(now.Add(61 * time.Second)); len(due) != 1 || !strings.Contains(next.String(), " m=") {
		t.Errorf("after the TTL %v are due, and the next look is at %v", due, next)
	}
	if info, ok := l.info(lease.ID); !ok || info.Remaining <= 59*time.Second || info.Remaining > 60*time.Second {
		t.Errorf("the lease has %v left", info.Remaining)
	}
}
