package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/kubase/kubase/pkg/sqlstore"
)

const (
	compactInterval = 100 * time.Millisecond
	// Watchers that are interrupted find the revision after the last one they saw, but some lists of the past come too late.
	keptRevisions = 20
)

// compactor compacts again and again, while faults happen, up to a little behind what every watcher has seen.
type compactor struct {
	clients  []*kubernetes.Client // of all servers
	watchers []*watcher
	rand     *rand.Rand
	last     int64 // the revision that it compacted at last, or tried to
}

func (c *compactor) work(ctx context.Context) error {
	ticker := time.NewTicker(compactInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		seen := c.watchers[0].seen.Load()
		for _, w := range c.watchers {
			seen = min(seen, w.seen.Load())
		}
		if seen-keptRevisions <= c.last {
			continue
		}
		c.last = seen - keptRevisions
		call, cancel := context.WithTimeout(ctx, callTimeout)
		_, err := c.clients[c.rand.IntN(len(c.clients))].Compact(call, c.last)
		cancel()
		if errors.Is(err, rpctypes.ErrFutureRev) {
			return fmt.Errorf("compacting at %d, which a watcher has seen: %w", c.last, err)
		}
	}
}

// readLog reads the history of a database, and up to which revision it is compacted. What is compacted is taken from a watcher, who saw it before; of that the database must have
// the versions that are live at the compact revision.
func readLog(ctx context.Context, engine sqlstore.Engine, w *watched) (l *changelog, compacted int64, err error) {
	var changes []change
	live := map[string]version{}
	err = engine.Walk(ctx, sqlstore.Visitor{
		Meta: func(m sqlstore.Meta, _ sqlstore.Revision) error {
			compacted = int64(m.CompactRevision)
			return nil
		},
		Lease: func(sqlstore.Lease) error { return nil },
		Change: func(c *sqlstore.Change) error {
			key := string(c.Key)
			next := change{revision: int64(c.ModRevision), key: key, before: live[key]}
			if c.Version != 0 {
				next.after = version{
					value: string(c.Value), mod: int64(c.ModRevision), create: int64(c.CreateRevision), version: c.Version,
				}
			}
			live[key] = next.after
			changes = append(changes, next)
			return nil
		},
		Key: func(*sqlstore.Row) error { return nil },
	})
	if err == nil {
		l, err = restoreLog(changes, w, compacted)
	}
	return l, compacted, err
}

// restoreLog puts a log together: up to the compact revision of what a watcher saw, from there on of what the database holds.
func restoreLog(held []change, w *watched, compacted int64) (*changelog, error) {
	var changes []change
	for _, r := range w.responses {
		for _, c := range r.events {
			if c.revision <= compacted {
				changes = append(changes, c)
			}
		}
	}
	seen, kept := newLog(changes), map[string]version{}
	for _, c := range held {
		if c.revision <= compacted {
			kept[c.key] = c.after
		} else {
			changes = append(changes, c)
		}
	}
	for key := range kept {
		if len(seen.byKey[key]) == 0 {
			return nil, fmt.Errorf("I8: compacted at %d, the database has %+v of %s, of which a watcher heard nothing", compacted, kept[key], key)
		}
	}
	for _, key := range seen.keys {
		if was := seen.at(key, compacted); was != kept[key] {
			return nil, fmt.Errorf("I6: compacted at %d, the database has %+v of %s, a watcher saw %+v", compacted, kept[key], key, was)
		}
	}
	return newLog(changes), nil
}

// TestRestoreLog compacts the sound history at revision 3, where only the second version of one key is left.
func TestRestoreLog(t *testing.T) {
	h, changes := sample()
	w := &h.watches[0]
	held := slices.Clone(changes[1:])
	if l, err := restoreLog(held, w, 3); err != nil || !reflect.DeepEqual(l, newLog(changes)) {
		t.Errorf("got %+v, %v, want %+v", l, err, changes)
	}
	other, unheard := slices.Clone(held), slices.Clone(held)
	other[0].after.value = "other"
	unheard[0].key = "/p/unheard"
	for name, c := range map[string]struct {
		held []change
		want string
	}{
		"lost by compaction": {held[1:], "I6"}, "another version": {other, "I6"}, "never heard of": {unheard, "I8"},
	} {
		if _, err := restoreLog(c.held, w, 3); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
}
