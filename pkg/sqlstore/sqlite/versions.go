package sqlite

import (
	"math"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// versions remembers rows of history by their ids. A version once committed never changes, and this process alone writes the file, so
// what is here is right for every snapshot that has its id. SQLite's own cache cannot serve for this: a reader drops all its pages
// whenever something was written.
type versions struct {
	mu       sync.Mutex
	rows     *simplelru.LRU[int64, sqlstore.Row]
	bytes    int
	maxBytes int
}

const (
	// versionOverhead is about what a remembered version takes beside its key and value, in bytes.
	versionOverhead = 256
	// atOnce is how many versions are looked up before others get their turn.
	atOnce = 512
)

func newVersions(maxBytes int) *versions {
	v := &versions{maxBytes: maxBytes}
	rows, err := simplelru.NewLRU(math.MaxInt, func(_ int64, row sqlstore.Row) { v.bytes -= versionSize(&row) })
	if err != nil {
		panic(err) // of a size below 1
	}
	v.rows = rows
	return v
}

func versionSize(row *sqlstore.Row) int { return len(row.Key) + len(row.Value) + versionOverhead }

// get fills rows with the versions that have these ids, and says which are not known. There are as many rows as ids.
func (v *versions) get(ids []int64, rows []sqlstore.Row) (missing []int) {
	for from := 0; from < len(ids); from += atOnce {
		missing = v.getSome(ids, rows, from, min(from+atOnce, len(ids)), missing)
	}
	return missing
}

func (v *versions) getSome(ids []int64, rows []sqlstore.Row, from, to int, missing []int) []int {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := from; i < to; i++ {
		var known bool
		if rows[i], known = v.rows.Get(ids[i]); !known {
			missing = append(missing, i)
		}
	}
	return missing
}

// addAll remembers versions that were read, unless they are so many that they would leave little of the rest.
func (v *versions) addAll(rows []sqlstore.Row) {
	size := 0
	for i := range rows {
		size += versionSize(&rows[i])
	}
	if size > v.maxBytes/2 {
		return
	}
	for i := range rows {
		v.add(&rows[i])
	}
}

// add remembers a version that is committed.
func (v *versions) add(row *sqlstore.Row) {
	v.mu.Lock()
	defer v.mu.Unlock()
	place := id(row.ModRevision, row.Sub)
	if v.rows.Contains(place) {
		return
	}
	v.rows.Add(place, *row)
	v.bytes += versionSize(row)
	for v.bytes > v.maxBytes {
		v.rows.RemoveOldest()
	}
}
