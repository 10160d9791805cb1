// Package storetest is the suite that every engine passes: what package sqlstore promises, case by case, each on a fresh database.
// Cases name the invariants (I1 to I9) that they are about. After each case the database is verified.
package storetest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// Opener opens one database. It can be called again when what it returned before is closed.
type Opener func(t *testing.T) sqlstore.Engine

// testCase is one case of the suite.
type testCase struct {
	name    string
	run     func(f *fixture)
	options sqlstore.Options
}

// Run runs the suite. fresh makes an empty database for the test it is given.
func Run(t *testing.T, fresh func(t *testing.T) Opener) {
	for _, group := range []struct {
		name  string
		cases []testCase
	}{
		{"Txn", txnCases}, {"Compare", compareCases}, {"Range", rangeCases}, {"RangeStream", rangeStreamCases},
		{"Watch", watchCases}, {"WatchMany", watchManyCases}, {"Lease", leaseCases}, {"Compact", compactCases},
		{"Snapshot", snapshotCases}, {"Alarm", alarmCases}, {"Auth", authCases}, {"Lifecycle", lifecycleCases},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.cases {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					f := newFixture(t, fresh(t), c.options)
					c.run(f)
					f.finish()
				})
			}
		})
	}
}

// fixture is the store of one case, with helpers that end the case when something fails.
type fixture struct {
	*testing.T
	*sqlstore.Store
	ctx     context.Context
	engine  sqlstore.Engine
	open    Opener
	options sqlstore.Options
}

// caseTimeout ends a case that waits for something that does not happen.
const caseTimeout = 30 * time.Second

func newFixture(t *testing.T, open Opener, options sqlstore.Options) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
	t.Cleanup(cancel)
	options.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	f := &fixture{T: t, ctx: ctx, open: open, options: options}
	f.start()
	t.Cleanup(func() {
		if err := f.Close(); err != nil { // does nothing after finish
			t.Error(err)
		}
	})
	return f
}

func (f *fixture) start() {
	f.Helper()
	f.engine = f.open(f.T)
	store, err := sqlstore.Open(f.ctx, f.engine, f.options)
	f.must(err)
	f.Store = store
}

func (f *fixture) reopen() {
	f.Helper()
	f.must(f.Close())
	f.start()
}

// finish verifies the database as the case leaves it.
func (f *fixture) finish() {
	f.Helper()
	res := f.rangeOf(sqlstore.RangeRequest{KeyRange: everything, Fields: sqlstore.NoFields})
	f.eventually("the events have kept count of the keys", func() bool { return f.Status().Keys == res.Count })
	f.must(sqlstore.Verify(f.ctx, f.engine))
	f.must(f.Close())
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// fails checks that a call failed with a sentinel.
func (f *fixture) fails(err, want error) {
	f.Helper()
	if !errors.Is(err, want) {
		f.Fatalf("error is %v, want %v", err, want)
	}
}

// equal compares what a case got with what it wanted.
func equal[T comparable](f *fixture, what string, got, want T) {
	f.Helper()
	if got != want {
		f.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// same compares lists of descriptions.
func same(f *fixture, what string, got, want []string) {
	f.Helper()
	if !slices.Equal(got, want) {
		f.Fatalf("%s:\ngot  (%d)\n  %s\nwant (%d)\n  %s", what,
			len(got), strings.Join(got, "\n  "), len(want), strings.Join(want, "\n  "))
	}
}
