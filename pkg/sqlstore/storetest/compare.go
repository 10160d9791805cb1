package storetest

import (
	"fmt"

	"github.com/kubase/kubase/pkg/sqlstore"
)

var compareCases = []testCase{
	{name: "EveryTargetAndResult", run: everyCompare},
	{name: "Ranges", run: func(f *fixture) {
		f.put("r/1", "x")
		f.put("r/2", "x")
		f.put("r/3", "y")
		for _, c := range []struct {
			name  string
			c     sqlstore.Compare
			holds bool
		}{
			{"all versions", sqlstore.Compare{KeyRange: prefix("r/"), Target: sqlstore.CompareVersion, Number: 1}, true},
			{"not all values", sqlstore.Compare{KeyRange: prefix("r/"), Target: sqlstore.CompareValue, Value: []byte("x")}, false},
			{"all values of a part", sqlstore.Compare{KeyRange: span("r/1", "r/3"), Target: sqlstore.CompareValue, Value: []byte("x")}, true},
			{"all above", sqlstore.Compare{KeyRange: fromKey("r/2"), Target: sqlstore.CompareMod, Result: sqlstore.Greater, Number: 2}, true},
			{"not all above", sqlstore.Compare{KeyRange: fromKey("a"), Target: sqlstore.CompareMod, Result: sqlstore.Greater, Number: 2}, false},
			{"no keys, version 0", sqlstore.Compare{KeyRange: prefix("s/"), Target: sqlstore.CompareVersion}, true},
			{"no keys, version 1", sqlstore.Compare{KeyRange: prefix("s/"), Target: sqlstore.CompareVersion, Number: 1}, false},
			{"no keys, any value", sqlstore.Compare{KeyRange: prefix("s/"), Target: sqlstore.CompareValue, Result: sqlstore.NotEqual, Value: []byte("x")}, false},
		} {
			equal(f, c.name, f.txn(sqlstore.TxnRequest{Compare: []sqlstore.Compare{c.c}}).Succeeded, c.holds)
		}
	}},
	{name: "AllMustHold", run: func(f *fixture) {
		f.put("a", "1")
		f.put("b", "1")
		r := sqlstore.TxnRequest{
			Compare: []sqlstore.Compare{modIs("a", 2), modIs("b", 3), modIs("c", 0)},
			Success: []sqlstore.Op{put("yes", "")}, Failure: []sqlstore.Op{put("no", "")},
		}
		equal(f, "all hold", f.txn(r).Succeeded, true)
		r.Compare[1] = modIs("b", 2)
		equal(f, "one does not", f.txn(r).Succeeded, false)
		same(f, "branches run", f.list(span("no", "z"), 0), []string{"no= m5 c5 v1", "yes= m4 c4 v1"})
	}},
	{name: "NestedLookAtTheStateBefore", run: func(f *fixture) {
		f.put("a", "1")
		inner := sqlstore.TxnRequest{
			Compare: []sqlstore.Compare{modIs("a", 2), modIs("b", 0)},
			Success: []sqlstore.Op{put("in", "yes")}, Failure: []sqlstore.Op{put("in", "no")},
		}
		res := f.txn(ops(put("a", "2"), put("b", "2"), nested(inner)))
		equal(f, "nested comparison", res.Responses[2].Txn.Succeeded, true)
		res = f.txn(sqlstore.TxnRequest{Compare: []sqlstore.Compare{modIs("a", 2)}, Failure: []sqlstore.Op{nested(inner)}})
		equal(f, "outer comparison", res.Succeeded, false)
		equal(f, "nested comparison", res.Responses[0].Txn.Succeeded, false)
		same(f, "keys", f.list(everything, 0), []string{"a=2 m3 c2 v2", "b=2 m3 c3 v1", "in=no m4 c3 v2"})
	}},
}

// everyCompare compares a key with three versions, and one that is not there, with a number or value below, equal and above.
func everyCompare(f *fixture) {
	f.grant(50, 100)
	f.put("other", "")
	for range 3 {
		f.txn(ops(putLeased("a", "m", 50)))
	}
	same(f, "key", f.list(single("a"), 0), []string{"a=m m5 c3 v3 l50"})
	fields := map[sqlstore.CompareTarget]int64{
		sqlstore.CompareVersion: 3, sqlstore.CompareCreate: 3, sqlstore.CompareMod: 5, sqlstore.CompareLease: 50,
	}
	holds := map[sqlstore.CompareResult][3]bool{ // for a given number below, equal to and above the field
		sqlstore.Equal:    {false, true, false},
		sqlstore.Greater:  {true, false, false},
		sqlstore.Less:     {false, false, true},
		sqlstore.NotEqual: {true, false, true},
	}
	for result, want := range holds {
		for i, value := range []string{"l", "m", "n"} {
			c := sqlstore.Compare{KeyRange: single("a"), Target: sqlstore.CompareValue, Result: result, Value: []byte(value)}
			what := fmt.Sprintf("value m, result %d, given %s", result, value)
			equal(f, what, f.txn(sqlstore.TxnRequest{Compare: []sqlstore.Compare{c}}).Succeeded, want[i])
			c.KeyRange = single("absent")
			equal(f, "absent: "+what, f.txn(sqlstore.TxnRequest{Compare: []sqlstore.Compare{c}}).Succeeded, false)
			for target, field := range fields {
				number := field + int64(i) - 1
				c := sqlstore.Compare{KeyRange: single("a"), Target: target, Result: result, Number: number}
				what := fmt.Sprintf("target %d, result %d, given %d", target, result, number)
				equal(f, what, f.txn(sqlstore.TxnRequest{Compare: []sqlstore.Compare{c}}).Succeeded, want[i])
				c.KeyRange, c.Number = single("absent"), int64(i)-1
				equal(f, "absent: "+what, f.txn(sqlstore.TxnRequest{Compare: []sqlstore.Compare{c}}).Succeeded, want[i])
			}
		}
	}
	equal(f, "revision afterwards", f.current(), 5)
}
