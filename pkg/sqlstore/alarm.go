package sqlstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// AlarmKind says what an alarm is about.
type AlarmKind int

// The kinds of alarm, with etcd's numbers.
const (
	AlarmNoSpace AlarmKind = 1 // the database must not grow
	AlarmCorrupt AlarmKind = 2 // the data is not to be trusted
)

func (k AlarmKind) String() string {
	switch k {
	case AlarmNoSpace:
		return "no space"
	case AlarmCorrupt:
		return "corrupt"
	}
	return "unknown"
}

// Alarm is kept in the database until it is cleared. The store only keeps it: what it means is for those who serve the store.
type Alarm struct {
	Member uint64 // the server that it is about
	Kind   AlarmKind
}

// alarms knows the alarms without asking the database, since they are looked at with each write. Those of other processes it learns by
// polling.
type alarms struct {
	store *Store
	known atomic.Pointer[[]Alarm] // stored and raised

	mu     sync.Mutex // guards the rest; held while the database is asked or told
	stored []Alarm
	raised []Alarm // that could not be stored yet: most are about a full disk
}

func newAlarms(s *Store) *alarms {
	a := &alarms{store: s}
	a.publish()
	return a
}

// publish follows each change. The caller holds mu.
func (a *alarms) publish() {
	all := append(slices.Clone(a.stored), a.raised...)
	a.known.Store(&all)
}

// load stores what could not be stored and reads what is. The caller holds mu.
func (a *alarms) load(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.store.opts.WriteTimeout)
	defer cancel()
	defer a.publish()
	var errs []error
	a.raised = slices.DeleteFunc(a.raised, func(alarm Alarm) bool {
		err := a.store.engine.PutAlarm(ctx, alarm)
		errs = append(errs, err)
		return err == nil
	})
	stored, err := a.store.engine.Alarms(ctx)
	if err == nil {
		a.stored = stored
	}
	return errors.Join(append(errs, err)...)
}

// loop polls while other processes may change alarms or some are to be stored.
func (a *alarms) loop(ctx context.Context) {
	ticker := time.NewTicker(a.store.opts.PollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		a.mu.Lock()
		if a.store.engine.Shared() || len(a.raised) > 0 {
			_ = a.load(ctx) // the next tick tries again; that the database is away is said elsewhere
		}
		a.mu.Unlock()
	}
}

// Alarmed says whether there is an alarm of a kind. One of another process is known within PollInterval.
func (s *Store) Alarmed(kind AlarmKind) bool {
	return slices.ContainsFunc(*s.alarms.known.Load(), func(a Alarm) bool { return a.Kind == kind })
}

// Alarms lists the alarms.
func (s *Store) Alarms(ctx context.Context) ([]Alarm, error) {
	s.alarms.mu.Lock()
	defer s.alarms.mu.Unlock()
	if err := s.alarms.load(ctx); err != nil && len(s.alarms.raised) == 0 {
		return nil, err
	}
	return *s.alarms.known.Load(), nil
}

// RaiseAlarm raises an alarm; it may be there already. If it cannot be stored, it counts in this process and is stored later.
func (s *Store) RaiseAlarm(ctx context.Context, alarm Alarm) {
	if slices.Contains(*s.alarms.known.Load(), alarm) {
		return
	}
	s.alarms.mu.Lock()
	defer s.alarms.mu.Unlock()
	if slices.Contains(*s.alarms.known.Load(), alarm) {
		return
	}
	s.log.Warn("an alarm is raised", "kind", alarm.Kind.String(), "member", alarm.Member)
	s.alarms.raised = append(s.alarms.raised, alarm)
	s.alarms.publish()
	_ = s.alarms.load(ctx) // else the loop stores it
}

// ClearAlarm clears an alarm and says whether there was one.
func (s *Store) ClearAlarm(ctx context.Context, alarm Alarm) (found bool, err error) {
	s.alarms.mu.Lock()
	defer s.alarms.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, s.opts.WriteTimeout)
	defer cancel()
	found, err = s.engine.DeleteAlarm(ctx, alarm)
	if err != nil {
		return false, err
	}
	found = found || slices.Contains(s.alarms.raised, alarm)
	is := func(a Alarm) bool { return a == alarm }
	s.alarms.stored = slices.DeleteFunc(s.alarms.stored, is)
	s.alarms.raised = slices.DeleteFunc(s.alarms.raised, is)
	s.alarms.publish()
	if found {
		s.log.Info("an alarm is cleared", "kind", alarm.Kind.String(), "member", alarm.Member)
	}
	return found, nil
}
