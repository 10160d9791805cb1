package sqlstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
)

// Verify reads a whole database and checks I1 to I6 as far as rows can show them. The error names what is wrong, up to a bound; nil
// means that nothing is. The database may be in use: Verify looks at one snapshot. It keeps in memory each live key, not its value.
func Verify(ctx context.Context, engine Engine) error {
	v := verifier{leases: map[LeaseID]struct{}{}, live: map[string]Row{}}
	err := engine.Walk(ctx, Visitor{Meta: v.meta, Lease: v.lease, Change: v.change, Key: v.key})
	if err == nil {
		err = v.end()
	}
	if errors.Is(err, errEnoughProblems) {
		err = nil
	}
	return errors.Join(append(v.problems, err)...)
}

// verifier replays history and compares where it ends with the live keys.
type verifier struct {
	Meta
	reached  Revision // up to here dead history must be gone
	leases   map[LeaseID]struct{}
	live     map[string]Row // by what history says so far, without values
	last     Row            // the last row of history that was seen
	lastKey  []byte         // the last live key that was seen; nil before the first
	keys     int
	problems []error
}

// errEnoughProblems ends the walk: after so many problems, more say nothing new.
var errEnoughProblems = errors.New("enough problems")

const maxProblems = 20

func (v *verifier) report(format string, args ...any) {
	v.problems = append(v.problems, fmt.Errorf(format, args...))
}

// enough is what a visitor's method returns.
func (v *verifier) enough() error {
	if len(v.problems) >= maxProblems {
		return errEnoughProblems
	}
	return nil
}

func (v *verifier) meta(meta Meta, reached Revision) error {
	v.Meta, v.reached = meta, reached
	if meta.ClusterID == 0 {
		v.report("the cluster id is 0")
	}
	if meta.CurrentRevision < 1 {
		v.report("current revision %d is below 1", meta.CurrentRevision)
	}
	if meta.CompactRevision < 0 || meta.CompactRevision > meta.CurrentRevision {
		v.report("compact revision %d is not between 0 and the current revision %d", meta.CompactRevision, meta.CurrentRevision)
	}
	if reached < 0 || reached > meta.CompactRevision {
		v.report("I5: history is deleted up to revision %d, beyond the compact revision %d", reached, meta.CompactRevision)
	}
	return v.enough()
}

func (v *verifier) lease(l Lease) error {
	v.leases[l.ID] = struct{}{}
	if l.ID == 0 || l.TTL <= 0 {
		v.report("lease %d has TTL %d", l.ID, l.TTL)
	}
	return v.enough()
}

func (v *verifier) change(c *Change) error {
	v.place(c)
	v.link(c)
	if c.Version == 0 {
		if len(c.Value) > 0 || c.CreateRevision != 0 || c.Lease != 0 {
			v.report("%s: a tombstone holds more than its key", c.where())
		}
		if c.ModRevision < v.reached {
			v.report("I5: %s: a tombstone below revision %d, up to which history is compacted", c.where(), v.reached)
		}
		delete(v.live, string(c.Key))
	} else {
		row := c.Row
		row.Value = nil
		v.live[string(c.Key)] = row
	}
	v.last = Row{KeyValue: KeyValue{ModRevision: c.ModRevision}, Sub: c.Sub}
	return v.enough()
}

// place checks that revisions follow each other without a gap and the changes of each too, where nothing is deleted yet.
func (v *verifier) place(c *Change) {
	if c.ModRevision > v.CurrentRevision {
		v.report("I2: %s: above the current revision %d", c.where(), v.CurrentRevision)
	}
	if c.ModRevision <= max(v.reached, 1) {
		if c.ModRevision <= 1 {
			v.report("I1: %s: the empty store is at revision 1", c.where())
		}
		return
	}
	switch {
	case c.ModRevision == v.last.ModRevision:
		if c.Sub != v.last.Sub+1 {
			v.report("I3: %s: follows change %d", c.where(), v.last.Sub)
		}
	case c.Sub != 0:
		v.report("I3: %s: is the first change of its revision", c.where())
	}
	if before := v.before(); c.ModRevision > before+1 {
		v.report("I2: %s: no changes between revision %d and it", c.where(), before)
	}
}

// before is the last revision that was seen, or that need not be seen.
func (v *verifier) before() Revision { return max(v.last.ModRevision, v.reached, 1) }

// link checks a change against the version it replaced.
func (v *verifier) link(c *Change) {
	prev, found := v.live[string(c.Key)]
	replaces := c.PrevRevision != 0
	switch {
	case replaces && found && (prev.ModRevision != c.PrevRevision || prev.Sub != c.PrevSub):
		v.report("I3: %s: replaces revision %d/%d, the key's last version is %d/%d",
			c.where(), c.PrevRevision, c.PrevSub, prev.ModRevision, prev.Sub)
	case replaces && found && c.ModRevision <= v.reached && c.PrevRevision < v.reached:
		v.report("I5: %s: the version it replaced is still there, although history is compacted up to revision %d", c.where(), v.reached)
	case replaces && !found && c.ModRevision > v.reached:
		v.report("I5: %s: the version it replaced is missing", c.where())
	case !replaces && found:
		v.report("I3: %s: says that it replaced nothing, but the key was live", c.where())
	}
	switch {
	case c.Version == 0:
		if !replaces {
			v.report("I3: %s: a tombstone that replaced nothing", c.where())
		}
	case !replaces:
		if c.Version != 1 || c.CreateRevision != c.ModRevision {
			v.report("I3: %s: a new key with version %d, created at revision %d", c.where(), c.Version, c.CreateRevision)
		}
	case found:
		if c.Version != prev.Version+1 || c.CreateRevision != prev.CreateRevision {
			v.report("I3: %s: version %d, created at %d, after version %d, created at %d",
				c.where(), c.Version, c.CreateRevision, prev.Version, prev.CreateRevision)
		}
	default:
		if c.Version < 2 || c.CreateRevision > c.PrevRevision {
			v.report("I3: %s: version %d, created at %d, does not follow one at %d", c.where(), c.Version, c.CreateRevision, c.PrevRevision)
		}
	}
}

// where names the row in a report.
func (c *Change) where() string {
	return fmt.Sprintf("history %d/%d, key %q", c.ModRevision, c.Sub, c.Key)
}

func (v *verifier) key(row *Row) error {
	if v.lastKey != nil && bytes.Compare(v.lastKey, row.Key) >= 0 {
		v.report("I6: key %q comes after %q", row.Key, v.lastKey)
	}
	v.lastKey = row.Key
	v.keys++
	said, live := v.live[string(row.Key)]
	switch {
	case !live:
		v.report("key %q is live, by history it is not", row.Key)
	case said.ModRevision != row.ModRevision || said.Sub != row.Sub || said.CreateRevision != row.CreateRevision ||
		said.Version != row.Version || said.Lease != row.Lease:
		v.report("key %q differs from its last version in history: %+v, %+v", row.Key, *row, said)
	}
	if row.Lease != 0 {
		if _, ok := v.leases[row.Lease]; !ok {
			v.report("key %q is attached to lease %d, which does not exist", row.Key, row.Lease)
		}
	}
	return v.enough()
}

func (v *verifier) end() error {
	if before := v.before(); before < v.CurrentRevision {
		v.report("I2: no changes between revision %d and the current one, %d", before, v.CurrentRevision)
	}
	if v.keys != len(v.live) && len(v.problems) == 0 { // with one of the problems above it is no news
		v.report("%d keys are live, by history %d are", v.keys, len(v.live))
	}
	return nil
}
