package robustness

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
)

// version is one version of a key; the zero value is a key that is not there. No two writes have the same value.
type version struct {
	value                string
	mod, create, version int64
}

// change is one row of history, and what a watcher hears of it.
type change struct {
	revision      int64
	key           string
	after, before version
}

// outcome is what a client knows of a call.
type outcome int

const (
	answered outcome = iota // the answer is in the operation
	refused                 // with an error that promises that nothing was done
	unknown                 // it may have been done
)

type kind int

const (
	txn  kind = iota // one comparison and one write, as Kubernetes writes; or writes alone
	get              // one key
	list             // a range, at a revision or now
)

// write is a put, or with an empty value a delete.
type write struct {
	key, value string
}

// operation is a call as its client saw it.
type operation struct {
	client     int
	kind       kind
	call, done int64 // on the test's monotonic clock, in ns
	outcome    outcome

	// Of a txn. With compare the write happens only if the key's mod revision is expect, 0 for no key.
	compare bool
	expect  int64
	writes  []write
	// Of a get and a list: the key or prefix; of a list: from where, how many and at which revision, 0 for now.
	key   string
	from  string
	limit int64
	at    int64

	// The answer.
	revision  int64 // of the header
	succeeded bool  // the comparison held
	looked    bool  // found is set: of a get, or of a Txn that reads the key when its comparison fails
	found     version
	listed    []keyVersion
	count     int64
}

type keyVersion struct {
	key string
	version
}

// acknowledged says whether the client knows that its writes were done.
func (o *operation) acknowledged() bool {
	return o.kind == txn && o.outcome == answered && o.succeeded
}

func (o *operation) String() string {
	what := [...]string{txn: "txn", get: "get", list: "list"}[o.kind]
	state := [...]string{answered: "answered", refused: "refused", unknown: "unknown"}[o.outcome]
	s := fmt.Sprintf("client %d: %s %s at revision %d", o.client, what, state, o.revision)
	switch {
	case o.kind == list:
		return s + fmt.Sprintf(" (%q from %q, limit %d, at %d)", o.key, o.from, o.limit, o.at)
	case o.kind == get:
		return s + fmt.Sprintf(" (%q)", o.key)
	case o.compare:
		return s + fmt.Sprintf(" (mod %d, succeeded %t, %q)", o.expect, o.succeeded, o.writes)
	}
	return s + fmt.Sprintf(" (%q)", o.writes)
}

// response is one message of a watch.
type response struct {
	at       int64 // when it came, as operation.call
	revision int64 // of the header
	events   []change
}

// watched is what one watcher got, over all its reconnections.
type watched struct {
	name      string
	prefix    string
	start     int64 // the first revision it asked for
	end       int64 // the revision that it had to reach
	responses []response
}

// history is everything that was seen from outside.
type history struct {
	operations []operation
	leases     []leased
	watches    []watched
}

// changelog is history from the first revision on.
type changelog struct {
	changes []change
	byKey   map[string][]change
	keys    []string
	last    int64
}

func newLog(changes []change) *changelog {
	l := &changelog{changes: changes, byKey: map[string][]change{}, last: 1}
	for _, c := range changes {
		if l.byKey[c.key] == nil {
			l.keys = append(l.keys, c.key)
		}
		l.byKey[c.key] = append(l.byKey[c.key], c)
		l.last = max(l.last, c.revision)
	}
	slices.Sort(l.keys)
	return l
}

// at is a key at a revision.
func (l *changelog) at(key string, revision int64) version {
	changes := l.byKey[key]
	n, _ := slices.BinarySearchFunc(changes, revision+1, func(c change, r int64) int { return cmp.Compare(c.revision, r) })
	if n == 0 {
		return version{}
	}
	return changes[n-1].after
}

// recorder collects operations, and lets faults wait for what the clients achieve.
type recorder struct {
	mu         sync.Mutex // guards everything below
	operations []operation
	leases     []leased
	counts     map[count]int
	changed    chan struct{} // closed and made anew with each operation
}

// count names what a fault can wait for: outcomes of the writes or reads through a server.
type count struct {
	server  int
	writes  bool
	outcome outcome
}

func newRecorder() *recorder {
	return &recorder{counts: map[count]int{}, changed: make(chan struct{})}
}

func (r *recorder) add(server int, o operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.operations = append(r.operations, o)
	if o.kind != txn || o.outcome != answered || o.succeeded { // a lost comparison is no write
		r.counts[count{server, o.kind == txn, o.outcome}]++
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *recorder) addLease(l leased) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leases = append(r.leases, l)
}

// failed is how many calls were not answered.
func (r *recorder) failed() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c, k := range r.counts {
		if c.outcome != answered {
			n += k
		}
	}
	return n
}

// await waits for n more of what any of the counts names.
func (r *recorder) await(ctx context.Context, n int, what ...count) error {
	total := func() (sum int, changed chan struct{}) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, c := range what {
			sum += r.counts[c]
		}
		return sum, r.changed
	}
	began, _ := total()
	for {
		now, changed := total()
		if now >= began+n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %d of %+v: only %d came: %w", n, what, now-began, ctx.Err())
		}
	}
}
