package sqlstore

import (
	"bytes"
	"cmp"
)

// CompareTarget is the field that a Compare looks at.
type CompareTarget int

// Compare targets, in etcd's order.
const (
	CompareVersion CompareTarget = iota
	CompareCreate
	CompareMod
	CompareValue
	CompareLease
)

// CompareResult is how a Compare relates the key's field to the given one.
type CompareResult int

// Compare results, in etcd's order.
const (
	Equal CompareResult = iota
	Greater
	Less
	NotEqual
)

// Compare holds if it holds for every key of its range. For a range without keys it holds if it holds for a key whose
// fields are all 0; a comparison of values then never holds. A target that there is not compares equal, and a result that
// there is not holds, as in etcd.
type Compare struct {
	KeyRange
	Target CompareTarget
	Result CompareResult
	Value  []byte // for CompareValue
	Number int64  // for the other targets
}

// holdsFor says whether the comparison holds for one key; kv is nil for a key that is not there.
func (c *Compare) holdsFor(kv *KeyValue) bool {
	if kv == nil {
		if c.Target == CompareValue {
			return false
		}
		kv = &KeyValue{}
	}
	var order int
	switch c.Target {
	case CompareVersion:
		order = cmp.Compare(kv.Version, c.Number)
	case CompareCreate:
		order = cmp.Compare(int64(kv.CreateRevision), c.Number)
	case CompareMod:
		order = cmp.Compare(int64(kv.ModRevision), c.Number)
	case CompareValue:
		order = bytes.Compare(kv.Value, c.Value)
	case CompareLease:
		order = cmp.Compare(int64(kv.Lease), c.Number)
	}
	switch c.Result {
	case Equal:
		return order == 0
	case Greater:
		return order > 0
	case Less:
		return order < 0
	case NotEqual:
		return order != 0
	default:
		return true
	}
}

// PutRequest sets a key.
type PutRequest struct {
	Key         []byte
	Value       []byte
	Lease       LeaseID
	IgnoreValue bool // keep the key's value; ErrKeyNotFound if there is no key
	IgnoreLease bool // keep the key's lease; ErrKeyNotFound if there is no key
	PrevKV      bool // answer the version that was replaced
}

// PutResult is the answer to PutRequest.
type PutResult struct {
	Revision Revision
	Prev     *KeyValue
}

// DeleteRequest deletes all keys of a range.
type DeleteRequest struct {
	KeyRange
	PrevKV bool // answer the versions that were deleted
}

// DeleteResult is the answer to DeleteRequest.
type DeleteResult struct {
	Revision Revision
	Deleted  int64
	Prev     []KeyValue
}

// TxnRequest runs Success if every Compare holds, else Failure, as one revision. All comparisons, those of nested Txns too,
// look at the state before the Txn. No key may be changed twice.
type TxnRequest struct {
	Compare []Compare
	Success []Op
	Failure []Op
	// AuthGeneration is the one by which the Txn was permitted; ErrAuthChanged if it is no longer so. 0: whatever it is.
	AuthGeneration int64
}

// TxnResult is the answer to TxnRequest.
type TxnResult struct {
	Revision  Revision
	Succeeded bool
	Responses []OpResult // one for each operation of the branch taken
}

// Op is one operation of a Txn: exactly one field is set.
type Op struct {
	Range  *RangeRequest
	Put    *PutRequest
	Delete *DeleteRequest
	Txn    *TxnRequest
}

// OpResult is the answer to Op, in the same field.
type OpResult struct {
	Range  *RangeResult
	Put    *PutResult
	Delete *DeleteResult
	Txn    *TxnResult
}

// keys lists the single keys that running the Txn will look up, so that they can be loaded together.
func (r *TxnRequest) keys(dst [][]byte) [][]byte {
	for i := range r.Compare {
		if r.Compare[i].Single() {
			dst = append(dst, r.Compare[i].Key)
		}
	}
	for _, ops := range [][]Op{r.Success, r.Failure} {
		for _, op := range ops {
			switch {
			case op.Range != nil && op.Range.Single():
				dst = append(dst, op.Range.Key)
			case op.Put != nil:
				dst = append(dst, op.Put.Key)
			case op.Delete != nil && op.Delete.Single():
				dst = append(dst, op.Delete.Key)
			case op.Txn != nil:
				dst = op.Txn.keys(dst)
			}
		}
	}
	return dst
}
