package etcdshim

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/server/v3/auth"
	"google.golang.org/protobuf/proto"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// The names that etcd gives to what is in its file: package schema of its server. The store's entries have the same.
const (
	authBucket  = "auth"
	usersBucket = "authUsers"
	rolesBucket = "authRoles"

	authEnabledKey  = "authEnabled"
	authRevisionKey = "authRevision"
)

// authBackend is the memory of one of etcd's AuthStores: entries of the store, and what is changed in them.
type authBackend struct {
	mu      sync.RWMutex // guards entries
	entries map[authKey][]byte
	stored  map[authKey][]byte // as they came
}

type authKey struct{ bucket, key string }

// newAuthBackend fails if an entry is not what etcd makes of a user or role.
func newAuthBackend(stored []sqlstore.AuthEntry) (*authBackend, error) {
	entries := make(map[authKey][]byte, len(stored))
	for _, e := range stored {
		var err error
		switch e.Bucket {
		case usersBucket:
			err = proto.Unmarshal(e.Value, &authpb.User{})
		case rolesBucket:
			err = proto.Unmarshal(e.Value, &authpb.Role{})
		}
		if err != nil {
			return nil, fmt.Errorf("%s %q in the store: %w", e.Bucket, e.Key, err)
		}
		entries[authKey{e.Bucket, e.Key}] = e.Value
	}
	return &authBackend{entries: entries, stored: maps.Clone(entries)}, nil
}

// changes lists what is different from what was stored.
func (b *authBackend) changes() []sqlstore.AuthEntry {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var changes []sqlstore.AuthEntry
	for key, value := range b.entries {
		if before, ok := b.stored[key]; !ok || string(before) != string(value) {
			changes = append(changes, sqlstore.AuthEntry{Bucket: key.bucket, Key: key.key, Value: value})
		}
	}
	for key := range b.stored {
		if _, ok := b.entries[key]; !ok {
			changes = append(changes, sqlstore.AuthEntry{Bucket: key.bucket, Key: key.key})
		}
	}
	return changes
}

func (b *authBackend) all() []sqlstore.AuthEntry {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var all []sqlstore.AuthEntry
	for key, value := range b.entries {
		all = append(all, sqlstore.AuthEntry{Bucket: key.bucket, Key: key.key, Value: value})
	}
	return all
}

// authBackend implements auth.AuthBackend. What is there is all in memory, so there are no buckets to make and nothing to commit.

func (*authBackend) CreateAuthBuckets() {}
func (*authBackend) ForceCommit()       {}

func (b *authBackend) ReadTx() auth.AuthReadTx   { return authTx{b} }
func (b *authBackend) BatchTx() auth.AuthBatchTx { return authTx{b} }

func (b *authBackend) GetUser(name string) *authpb.User {
	return read(b, authTx{b}.UnsafeGetUser, name)
}
func (b *authBackend) GetRole(name string) *authpb.Role {
	return read(b, authTx{b}.UnsafeGetRole, name)
}

func read[T any](b *authBackend, get func(string) T, name string) T {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return get(name)
}

func (b *authBackend) GetAllUsers() []*authpb.User {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return authTx{b}.UnsafeGetAllUsers()
}

func (b *authBackend) GetAllRoles() []*authpb.Role {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return authTx{b}.UnsafeGetAllRoles()
}

// authTx implements both transactions of etcd's: they are locks.
type authTx struct{ b *authBackend }

func (t authTx) Lock()    { t.b.mu.Lock() }
func (t authTx) Unlock()  { t.b.mu.Unlock() }
func (t authTx) RLock()   { t.b.mu.RLock() }
func (t authTx) RUnlock() { t.b.mu.RUnlock() }

func (t authTx) get(bucket, key string) ([]byte, bool) {
	value, ok := t.b.entries[authKey{bucket, key}]
	return value, ok
}

func (t authTx) names(bucket string) []string {
	var names []string
	for key := range t.b.entries {
		if key.bucket == bucket {
			names = append(names, key.key)
		}
	}
	slices.Sort(names)
	return names
}

func (t authTx) put(bucket, key string, m proto.Message) {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err) // these messages have no strings that could be malformed, and no required fields
	}
	t.b.entries[authKey{bucket, key}] = value
}

func (t authTx) UnsafeReadAuthEnabled() bool {
	value, _ := t.get(authBucket, authEnabledKey)
	return len(value) == 1 && value[0] == 1
}

func (t authTx) UnsafeReadAuthRevision() uint64 {
	value, ok := t.get(authBucket, authRevisionKey)
	if !ok || len(value) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(value)
}

func (t authTx) UnsafeSaveAuthEnabled(enabled bool) {
	value := []byte{0}
	if enabled {
		value[0] = 1
	}
	t.b.entries[authKey{authBucket, authEnabledKey}] = value
}

func (t authTx) UnsafeSaveAuthRevision(revision uint64) {
	t.b.entries[authKey{authBucket, authRevisionKey}] = binary.BigEndian.AppendUint64(nil, revision)
}

// UnsafeGetUser returns a copy, which AuthStore changes. That it can be read was checked when it came.
func (t authTx) UnsafeGetUser(name string) *authpb.User {
	value, ok := t.get(usersBucket, name)
	if !ok {
		return nil
	}
	user := &authpb.User{}
	_ = proto.Unmarshal(value, user)
	return user
}

func (t authTx) UnsafeGetRole(name string) *authpb.Role {
	value, ok := t.get(rolesBucket, name)
	if !ok {
		return nil
	}
	role := &authpb.Role{}
	_ = proto.Unmarshal(value, role)
	return role
}

func (t authTx) UnsafeGetAllUsers() []*authpb.User {
	var users []*authpb.User
	for _, name := range t.names(usersBucket) {
		users = append(users, t.UnsafeGetUser(name))
	}
	return users
}

func (t authTx) UnsafeGetAllRoles() []*authpb.Role {
	var roles []*authpb.Role
	for _, name := range t.names(rolesBucket) {
		roles = append(roles, t.UnsafeGetRole(name))
	}
	return roles
}

func (t authTx) UnsafePutUser(user *authpb.User) { t.put(usersBucket, string(user.Name), user) }
func (t authTx) UnsafePutRole(role *authpb.Role) { t.put(rolesBucket, string(role.Name), role) }
func (t authTx) UnsafeDeleteUser(name string)    { delete(t.b.entries, authKey{usersBucket, name}) }
func (t authTx) UnsafeDeleteRole(name string)    { delete(t.b.entries, authKey{rolesBucket, name}) }
