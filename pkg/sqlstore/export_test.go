package sqlstore

// CheckChanges is checkChanges, for tests.
var CheckChanges = checkChanges

// IsPrefix is isPrefix, for tests.
func (r KeyRange) IsPrefix() bool { return r.isPrefix() }
