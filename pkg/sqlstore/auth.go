package sqlstore

import "context"

// AuthEntry is a part of who may do what: a user, a role, a setting. The store keeps entries and does not look into them.
type AuthEntry struct {
	Bucket string
	Key    string
	Value  []byte // nil in a change: the entry is removed
}

// AuthState is all entries at one moment, by bucket and key.
type AuthState struct {
	// Generation is one more with each change. Reads answer it, and a Txn may demand it.
	Generation int64
	Entries    []AuthEntry
}

// Auth reads all entries.
func (s *Store) Auth(ctx context.Context) (AuthState, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.ReadTimeout)
	defer cancel()
	state, err := s.engine.Auth(ctx)
	s.outage.saw(err)
	return state, err
}

// AuthGeneration reads the newest generation.
func (s *Store) AuthGeneration(ctx context.Context) (int64, error) {
	rows, err := s.read(ctx, RangeQuery{Start: fromKey, Fields: NoFields}) // only where the store stands
	return rows.Meta.AuthGeneration, err
}

// ChangeAuth changes entries in one transaction, which no other change and no Txn comes between, and takes no revision. change gets the
// newest entries and returns what is to be different; if that is nothing, nothing is done. It may be called again. The result is what
// the entries are then.
func (s *Store) ChangeAuth(ctx context.Context, change func(AuthState) []AuthEntry) (AuthState, error) {
	var after AuthState
	err := s.do(ctx, nil, func(ctx context.Context, b *batch) error {
		entries, err := b.tx.Auth(ctx)
		if err != nil {
			return err
		}
		after = AuthState{Generation: b.meta.AuthGeneration, Entries: entries}
		changes := change(after)
		if len(changes) == 0 {
			return nil
		}
		for _, e := range changes {
			if err := b.tx.PutAuth(ctx, e); err != nil {
				return err
			}
		}
		b.dirty = true
		b.meta.AuthGeneration++
		after.Generation = b.meta.AuthGeneration
		after.Entries, err = b.tx.Auth(ctx)
		return err
	})
	return after, err
}
