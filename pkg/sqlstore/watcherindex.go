package sqlstore

import "slices"

// watcherIndex finds the watchers of a key without looking at all of them. Nearly every watcher watches one key or a prefix:
// those are found by looking up the key, and its beginning in each length that some prefix has.
type watcherIndex struct {
	keys     map[string][]*Watcher
	prefixes map[string][]*Watcher
	lengths  []int       // of the prefixes, each once, ascending
	perLen   map[int]int // distinct prefixes of each length
	others   []*Watcher  // any other range
}

func newWatcherIndex() watcherIndex {
	return watcherIndex{keys: map[string][]*Watcher{}, prefixes: map[string][]*Watcher{}, perLen: map[int]int{}}
}

// match calls found for each watcher of the key. found may remove the watcher it is called with.
func (x *watcherIndex) match(key []byte, found func(*Watcher)) {
	each := func(ws []*Watcher) {
		for i := len(ws) - 1; i >= 0; i-- {
			found(ws[i])
		}
	}
	each(x.keys[string(key)])
	for i := 0; i < len(x.lengths); {
		n := x.lengths[i]
		if n > len(key) {
			break
		}
		each(x.prefixes[string(key[:n])])
		if i < len(x.lengths) && x.lengths[i] == n { // else a removal took the length out
			i++
		}
	}
	for i := len(x.others) - 1; i >= 0; i-- {
		if x.others[i].Contains(key) {
			found(x.others[i])
		}
	}
}

func (x *watcherIndex) add(w *Watcher) {
	if w.Single() {
		x.keys[string(w.Key)] = append(x.keys[string(w.Key)], w)
		return
	}
	if !w.isPrefix() {
		x.others = append(x.others, w)
		return
	}
	prefix := string(w.Key)
	if len(x.prefixes[prefix]) == 0 {
		x.perLen[len(prefix)]++
		if i, ok := slices.BinarySearch(x.lengths, len(prefix)); !ok {
			x.lengths = slices.Insert(x.lengths, i, len(prefix))
		}
	}
	x.prefixes[prefix] = append(x.prefixes[prefix], w)
}

// remove takes a watcher out; it need not be in.
func (x *watcherIndex) remove(w *Watcher) {
	if w.Single() {
		removeFrom(x.keys, w)
		return
	}
	if !w.isPrefix() {
		x.others = without(x.others, w)
		return
	}
	if !removeFrom(x.prefixes, w) {
		return
	}
	n := len(w.Key)
	if x.perLen[n]--; x.perLen[n] == 0 {
		delete(x.perLen, n)
		if i, ok := slices.BinarySearch(x.lengths, n); ok {
			x.lengths = slices.Delete(x.lengths, i, i+1)
		}
	}
}

func (x *watcherIndex) all() []*Watcher {
	all := slices.Clone(x.others)
	for _, byKey := range []map[string][]*Watcher{x.keys, x.prefixes} {
		for _, ws := range byKey {
			all = append(all, ws...)
		}
	}
	return all
}

// removeFrom says whether w was the last one under its key.
func removeFrom(m map[string][]*Watcher, w *Watcher) bool {
	ws, ok := m[string(w.Key)]
	if !ok {
		return false
	}
	if ws = without(ws, w); len(ws) > 0 {
		m[string(w.Key)] = ws
		return false
	}
	delete(m, string(w.Key))
	return true
}

func without(ws []*Watcher, w *Watcher) []*Watcher {
	if i := slices.Index(ws, w); i >= 0 {
		return slices.Delete(ws, i, i+1)
	}
	return ws
}

// isPrefix says whether the range is all keys that begin with Key: End is Key with its last byte one higher, bytes of 0xff at
// the end being dropped first.
func (r KeyRange) isPrefix() bool {
	n := len(r.Key)
	for n > 0 && r.Key[n-1] == 0xff {
		n--
	}
	if n == 0 || len(r.End) != n {
		return false
	}
	return slices.Equal(r.Key[:n-1], r.End[:n-1]) && r.End[n-1] == r.Key[n-1]+1
}
