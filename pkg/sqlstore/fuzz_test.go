package sqlstore_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/pkg/sqlstore/storetest"
)

// FuzzKeyRange compares the three ways to look at a range: what it contains, its span, and whether it is a prefix.
func FuzzKeyRange(f *testing.F) {
	for _, key := range []string{"", "a", "a\x00", "a\xff", "b", "\xff", "\xff\xff"} {
		for _, end := range []string{"", "\x00", "a", "b", "a\x00", "\xff"} {
			f.Add([]byte(key), []byte(end), []byte("a"))
			f.Add([]byte(key), []byte(end), append([]byte(key), 'x'))
		}
	}
	f.Fuzz(func(t *testing.T, from, end, key []byte) {
		r := sqlstore.KeyRange{Key: from, End: end}
		first, behind := r.Span()
		inSpan := bytes.Compare(key, first) >= 0 && (behind == nil || bytes.Compare(key, behind) < 0)
		if r.Contains(key) != inSpan {
			t.Errorf("[%q, %q) contains %q: %v; its span [%q, %q): %v", from, end, key, r.Contains(key), first, behind, inSpan)
		}
		if r.IsPrefix() && r.Contains(key) != bytes.HasPrefix(key, from) {
			t.Errorf("[%q, %q) is a prefix and contains %q: %v", from, end, key, r.Contains(key))
		}
	})
}

// FuzzPrefix makes the range of a prefix as etcd's clients do; it must be known as one.
func FuzzPrefix(f *testing.F) {
	for _, prefix := range []string{"a", "/registry/", "a\xff", "a\xff\xff", "\x00", "\xff"} {
		f.Add([]byte(prefix))
	}
	f.Fuzz(func(t *testing.T, prefix []byte) {
		end := bytes.Clone(prefix)
		for len(end) > 0 && end[len(end)-1] == 0xff {
			end = end[:len(end)-1]
		}
		if len(end) == 0 {
			return // such a range has no upper end
		}
		end[len(end)-1]++
		r := sqlstore.KeyRange{Key: prefix, End: end}
		if !r.IsPrefix() {
			t.Errorf("[%q, %q) is not known as a prefix", prefix, end)
		}
	})
}

// FuzzCheckChanges compares the rule against changing a key twice with the rule as one would say it.
func FuzzCheckChanges(f *testing.F) {
	for _, program := range []string{"pa pa", "pa da", "da pa", "[pa|pa]", "[pa|] pa", "[pa|] [da|]", "[da|] [pa|]", "[pa|da]", "pa Dab", "pb Dab",
		"Ua pb", "[[pa|pb]|pa] [pc|Dac]", "[|[|pa]] [|[|pa]]"} {
		f.Add([]byte(program))
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		if len(program) > 60 {
			return // the slow rule is slow
		}
		r := &sqlstore.TxnRequest{}
		r.Success, _ = parse(program, 0)
		err := sqlstore.CheckChanges(r)
		if want := storetest.ChangesTwice(r); (err != nil) != want || err != nil && !errors.Is(err, sqlstore.ErrDuplicateKey) {
			t.Errorf("%q: duplicate is %v, error %v", program, want, err)
		}
	})
}

// parse reads operations: pK puts K, dK deletes K, DKE deletes [K, E), UK deletes from K on, [A|B] is a Txn with two branches. What is
// none of these is passed over.
func parse(program []byte, depth int) (ops []sqlstore.Op, rest []byte) {
	key := func(i int) []byte { return []byte{'a' + program[i]%4} }
	for len(program) > 0 {
		var op sqlstore.Op
		n := 1
		switch c := program[0]; {
		case c == '|' || c == ']':
			return ops, program
		case c == '[' && depth < 4:
			op.Txn = &sqlstore.TxnRequest{}
			op.Txn.Success, program = parse(program[1:], depth+1)
			if len(program) > 0 && program[0] == '|' {
				op.Txn.Failure, program = parse(program[1:], depth+1)
			}
			n = min(1, len(program))
		case c == 'p' && len(program) > 1:
			op.Put = &sqlstore.PutRequest{Key: key(1)}
			n = 2
		case c == 'd' && len(program) > 1:
			op.Delete = &sqlstore.DeleteRequest{KeyRange: sqlstore.KeyRange{Key: key(1)}}
			n = 2
		case c == 'D' && len(program) > 2:
			op.Delete = &sqlstore.DeleteRequest{KeyRange: sqlstore.KeyRange{Key: key(1), End: key(2)}}
			n = 3
		case c == 'U' && len(program) > 1:
			op.Delete = &sqlstore.DeleteRequest{KeyRange: sqlstore.KeyRange{Key: key(1), End: []byte{0}}}
			n = 2
		}
		program = program[n:]
		if op != (sqlstore.Op{}) {
			ops = append(ops, op)
		}
	}
	return ops, nil
}
