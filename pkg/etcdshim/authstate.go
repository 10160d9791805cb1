package etcdshim

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/auth"
	"go.uber.org/zap"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// Auth says who may do what on a store, by the rules of etcd's own AuthStore. All servers of a process on a store share it: so a token is
// good for each of them. Other processes on the database have tokens of their own.
//
// What it knows is a copy. Each change has a generation, which the store shows with every read and checks before every write: so a
// request is never answered by permissions that another process took back before.
type Auth struct {
	store     *sqlstore.Store
	cost      int
	tokens    auth.TokenProvider
	lastToken atomic.Uint64

	taking  sync.Mutex // held while current is replaced; nothing else is held before it
	current atomic.Pointer[authState]
}

// AuthOptions tunes Auth. The zero value is etcd's defaults.
type AuthOptions struct {
	// Token is the kind of tokens, as in etcd's flag --auth-token: simple, or jwt with its options. Default simple.
	Token string
	// TokenTTL is how long a simple token is good after its last use. Default 5 min.
	TokenTTL time.Duration
	// BcryptCost is the cost of hashing a password. Default 10.
	BcryptCost int
}

// DefaultBcryptCost is etcd's.
const DefaultBcryptCost = 10

// authState is what is known at one generation. It does not change.
type authState struct {
	auth.AuthStore
	generation int64
	backend    *authBackend
}

// NewAuth reads who may do what.
func NewAuth(ctx context.Context, store *sqlstore.Store, opts AuthOptions) (*Auth, error) {
	if opts.Token == "" {
		opts.Token = "simple"
	}
	if opts.BcryptCost == 0 {
		opts.BcryptCost = DefaultBcryptCost
	}
	known := make(chan struct{}) // of a simple token etcd waits until its member knows it: here they all do
	close(known)
	tokens, err := auth.NewTokenProvider(zap.NewNop(), opts.Token, func(uint64) <-chan struct{} { return known }, opts.TokenTTL)
	if err != nil {
		kind, _, _ := strings.Cut(opts.Token, ",") // its options may name keys
		return nil, fmt.Errorf("tokens of kind %q: %w", kind, err)
	}
	a := &Auth{store: store, cost: opts.BcryptCost, tokens: tokens}
	state, err := store.Auth(ctx)
	if err != nil {
		return nil, err
	}
	return a, a.take(state)
}

// Close forgets all tokens.
func (a *Auth) Close() error { return a.current.Load().Close() }

func (a *Auth) newState(state sqlstore.AuthState, tokens auth.TokenProvider) (*authState, error) {
	backend, err := newAuthBackend(state.Entries)
	if err != nil {
		return nil, err
	}
	return &authState{auth.NewAuthStore(zap.NewNop(), backend, tokens, a.cost), state.Generation, backend}, nil
}

// take makes a state the current one, unless that is as new.
func (a *Auth) take(state sqlstore.AuthState) error {
	a.taking.Lock()
	defer a.taking.Unlock()
	old := a.current.Load()
	if old != nil && old.generation >= state.Generation {
		return nil
	}
	if old != nil {
		if err := a.invalidateTokens(old, state); err != nil {
			return err
		}
	}
	next, err := a.newState(state, a.tokens)
	if err == nil {
		a.current.Store(next)
	}
	return err
}

// invalidateTokens makes the tokens void that would be if the changes between two states had been made here: those of users who are gone or
// have another password, and all when authentication was turned off. It makes these changes in a copy of the old state.
func (a *Auth) invalidateTokens(old *authState, state sqlstore.AuthState) error {
	next, err := newAuthBackend(state.Entries)
	if err != nil {
		return err
	}
	scratch, err := a.newState(sqlstore.AuthState{Entries: old.backend.all()}, a.tokens)
	if err != nil {
		return err
	}
	if !(authTx{next}).UnsafeReadAuthEnabled() {
		scratch.AuthDisable()
	}
	for _, user := range old.backend.GetAllUsers() {
		now := next.GetUser(string(user.Name))
		switch {
		case now == nil:
			_, err = scratch.UserDelete(&pb.AuthUserDeleteRequest{Name: string(user.Name)})
		case !bytes.Equal(now.Password, user.Password):
			_, err = scratch.UserChangePassword(&pb.AuthUserChangePasswordRequest{
				Name: string(user.Name), HashedPassword: base64.StdEncoding.EncodeToString(now.Password),
			})
		}
		if err != nil {
			return fmt.Errorf("tokens of user %q: %w", user.Name, err)
		}
	}
	return nil
}

// newest returns what the store has now.
func (a *Auth) newest(ctx context.Context) (*authState, error) {
	known := a.current.Load()
	generation, err := a.store.AuthGeneration(ctx)
	if err != nil {
		return nil, err
	}
	if generation == known.generation {
		return known, nil
	}
	state, err := a.store.Auth(ctx)
	if err == nil {
		err = a.take(state)
	}
	return a.current.Load(), err
}

// change runs an operation on what the store has, by who asks, and keeps what comes of it.
func (a *Auth) change(ctx context.Context, info *auth.AuthInfo, operation func(auth.AuthStore) error) error {
	noTokens, err := auth.NewTokenProvider(zap.NewNop(), "", nil, 0)
	if err != nil {
		return err
	}
	var refused error
	state, err := a.store.ChangeAuth(ctx, func(stored sqlstore.AuthState) []sqlstore.AuthEntry {
		var scratch *authState
		if scratch, refused = a.newState(stored, noTokens); refused != nil {
			return nil
		}
		if refused = scratch.IsAdminPermitted(info); refused != nil {
			return nil
		}
		if refused = operation(scratch); refused != nil {
			return nil
		}
		return scratch.backend.changes()
	})
	switch {
	case err != nil:
		return err
	case refused != nil:
		return refused
	}
	return a.take(state)
}
