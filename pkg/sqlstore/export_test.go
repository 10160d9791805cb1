package sqlstore

// IsPrefix is isPrefix, for tests.
func (r KeyRange) IsPrefix() bool { return r.isPrefix() }
