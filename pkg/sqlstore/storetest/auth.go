package storetest

import (
	"fmt"

	"github.com/kubase/kubase/pkg/sqlstore"
)

var authCases = []testCase{
	{name: "Entries", run: authEntries},
	{name: "TxnDemandsGeneration", run: txnDemandsGeneration},
}

func (f *fixture) changeAuth(entries ...sqlstore.AuthEntry) sqlstore.AuthState {
	f.Helper()
	state, err := f.ChangeAuth(f.ctx, func(sqlstore.AuthState) []sqlstore.AuthEntry { return entries })
	f.must(err)
	return state
}

func describeAuth(entries []sqlstore.AuthEntry) []string {
	var lines []string
	for _, e := range entries {
		lines = append(lines, fmt.Sprintf("%s %q=%q", e.Bucket, e.Key, e.Value))
	}
	return lines
}

// authEntries changes entries: each change is one more generation and no revision, and is there after a restart.
func authEntries(f *fixture) {
	state, err := f.Auth(f.ctx)
	f.must(err)
	equal(f, "generation of an empty store", state.Generation, 1)
	equal(f, "entries of an empty store", len(state.Entries), 0)
	revision := f.Revision()

	f.changeAuth(
		sqlstore.AuthEntry{Bucket: "b", Key: "2", Value: []byte("two")},
		sqlstore.AuthEntry{Bucket: "b", Key: "\x00\xff", Value: []byte{}},
		sqlstore.AuthEntry{Bucket: "a", Key: "z", Value: []byte("\x00")},
		sqlstore.AuthEntry{Bucket: "aZ", Key: "1", Value: []byte("1")},
	)
	state = f.changeAuth(
		sqlstore.AuthEntry{Bucket: "b", Key: "2", Value: []byte("new")},
		sqlstore.AuthEntry{Bucket: "a", Key: "z"},
		sqlstore.AuthEntry{Bucket: "a", Key: "none"},
	)
	want := []string{`aZ "1"="1"`, `b "\x00\xff"=""`, `b "2"="new"`}
	same(f, "what the change answers", describeAuth(state.Entries), want)
	equal(f, "generation after two changes", state.Generation, 3)
	equal(f, "generation after none", f.changeAuth().Generation, 3)

	f.reopen()
	state, err = f.Auth(f.ctx)
	f.must(err)
	same(f, "after a restart", describeAuth(state.Entries), want)
	equal(f, "generation after a restart", state.Generation, 3)
	generation, err := f.AuthGeneration(f.ctx)
	f.must(err)
	equal(f, "generation alone", generation, 3)
	equal(f, "revision", f.Revision(), revision)
	f.must(f.Snapshot(f.ctx, func(s sqlstore.Snapshot) error {
		entries, err := s.Auth(f.ctx)
		same(f, "in a snapshot", describeAuth(entries), want)
		return err
	}))
}

// txnDemandsGeneration: a Txn that was permitted by what is no longer so is refused; reads say by what they are.
func txnDemandsGeneration(f *fixture) {
	put := func(generation int64) error {
		_, err := f.Txn(f.ctx, &sqlstore.TxnRequest{
			AuthGeneration: generation, Success: []sqlstore.Op{{Put: &sqlstore.PutRequest{Key: []byte("a"), Value: []byte("1")}}},
		})
		return err
	}
	f.must(put(1))
	f.changeAuth(sqlstore.AuthEntry{Bucket: "a", Key: "a", Value: []byte("1")})
	revision := f.Revision()
	f.fails(put(1), sqlstore.ErrAuthChanged)
	equal(f, "revision after a refusal", f.Revision(), revision)
	f.must(put(2))
	f.must(put(0))
	for _, r := range []sqlstore.RangeRequest{{KeyRange: sqlstore.KeyRange{Key: []byte("a")}}, {KeyRange: everything}} {
		equal(f, "generation of a read", f.rangeOf(r).AuthGeneration, 2)
		f.must(f.RangeStream(f.ctx, &r, 1000, func(res *sqlstore.RangeResult) error {
			equal(f, "generation of a chunk", res.AuthGeneration, 2)
			return nil
		}))
	}
}
