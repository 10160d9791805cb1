package storetest

import (
	"fmt"
	"strings"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// Requests and answers as text, to compare them and to show them.

func rangeString(r *sqlstore.RangeResult) string {
	return fmt.Sprintf("range@%d count %d more %v %q", r.Revision, r.Count, r.More, describe(r.KVs))
}

func resultString(r *sqlstore.TxnResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "txn@%d %v", r.Revision, r.Succeeded)
	for _, res := range r.Responses {
		switch {
		case res.Range != nil:
			fmt.Fprintf(&b, "\n%s", rangeString(res.Range))
		case res.Put != nil:
			fmt.Fprintf(&b, "\nput@%d was %s", res.Put.Revision, kvString(res.Put.Prev))
		case res.Delete != nil:
			fmt.Fprintf(&b, "\ndelete@%d %d were %q", res.Delete.Revision, res.Delete.Deleted, describe(res.Delete.Prev))
		case res.Txn != nil:
			fmt.Fprintf(&b, "\n(%s)", resultString(res.Txn))
		}
	}
	return b.String()
}

func txnString(r *sqlstore.TxnRequest) string {
	var b strings.Builder
	b.WriteString("txn if")
	for _, c := range r.Compare {
		fmt.Fprintf(&b, " [%q, %q) target %d result %d number %d value %q;", c.Key, c.End, c.Target, c.Result, c.Number, c.Value)
	}
	for _, branch := range [][]sqlstore.Op{r.Success, r.Failure} {
		b.WriteString(" {")
		for _, op := range branch {
			switch {
			case op.Range != nil:
				fmt.Fprintf(&b, " range %+v;", *op.Range)
			case op.Put != nil:
				fmt.Fprintf(&b, " put %+v;", *op.Put)
			case op.Delete != nil:
				fmt.Fprintf(&b, " delete [%q, %q);", op.Delete.Key, op.Delete.End)
			case op.Txn != nil:
				fmt.Fprintf(&b, " (%s);", txnString(op.Txn))
			}
		}
		b.WriteString(" }")
	}
	return b.String()
}
