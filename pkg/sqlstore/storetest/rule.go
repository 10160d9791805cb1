package storetest

import "github.com/kubase/kubase/pkg/sqlstore"

// ChangesTwice says whether a Txn breaks etcd's rule against changing a key twice, by looking at each pair of operations: slow, and
// the rule as one would say it. Two puts of a key, or a put and a delete that covers it, must not both be in the Txn, unless they are
// in the two branches of one Txn, or the delete is in a nested Txn behind the one with the put. Deletes without
// an upper end do not count.
func ChangesTwice(r *sqlstore.TxnRequest) bool {
	return clashIn(r.Success) || clashIn(r.Failure)
}

func clashIn(list []sqlstore.Op) bool {
	for i, a := range list {
		if a.Txn != nil && ChangesTwice(a.Txn) {
			return true
		}
		for j, b := range list[:i] {
			for _, x := range leaves(b) {
				for _, y := range leaves(a) {
					if clash(x, y) && !(list[i].Txn != nil && list[j].Txn != nil && x.Put != nil && y.Delete != nil) {
						return true
					}
				}
			}
		}
	}
	return false
}

// leaves are the puts and deletes in an operation, whichever branches they are in.
func leaves(op sqlstore.Op) []sqlstore.Op {
	if op.Txn == nil {
		return []sqlstore.Op{op}
	}
	var all []sqlstore.Op
	for _, branch := range [][]sqlstore.Op{op.Txn.Success, op.Txn.Failure} {
		for _, inner := range branch {
			all = append(all, leaves(inner)...)
		}
	}
	return all
}

func clash(x, y sqlstore.Op) bool {
	switch {
	case x.Put != nil && y.Put != nil:
		return string(x.Put.Key) == string(y.Put.Key)
	case x.Put != nil && y.Delete != nil:
		return inRange(string(x.Put.Key), y.Delete.KeyRange) && string(y.Delete.End) != "\x00"
	case x.Delete != nil && y.Put != nil:
		return clash(y, x)
	}
	return false
}

// inRange says by etcd's definition whether a key lies in a range.
func inRange(key string, r sqlstore.KeyRange) bool {
	switch from, end := string(r.Key), string(r.End); end {
	case "":
		return key == from
	case "\x00":
		return key >= from
	default:
		return from <= key && key < end
	}
}
