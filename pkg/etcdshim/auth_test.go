package etcdshim_test

import (
	"context"
	"testing"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"golang.org/x/crypto/bcrypt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/kubase/kubase/pkg/etcdshim"
	"github.com/kubase/kubase/pkg/sqlstore"
)

// What users and administrators are answered is compared with etcd in test/conformance.

// protected is a server on which authentication is on. Its users are root, and alice who may do everything below app/.
type protected struct {
	api
	store       *sqlstore.Store
	root, alice context.Context // with their tokens
}

func protect(t *testing.T) protected {
	t.Helper()
	store := openStore(t)
	auth, err := etcdshim.NewAuth(t.Context(), store, etcdshim.AuthOptions{BcryptCost: bcrypt.MinCost})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := auth.Close(); err != nil {
			t.Error(err)
		}
	})
	a := serveStore(t, store, etcdshim.Options{Auth: auth})
	client, ctx := pb.NewAuthClient(a.conn), t.Context()
	perm := &authpb.Permission{PermType: authpb.READWRITE, Key: []byte("app/"), RangeEnd: []byte("app0")}
	for _, change := range []func() error{
		func() error {
			_, err := client.UserAdd(ctx, &pb.AuthUserAddRequest{Name: "root", Password: "r"})
			return err
		},
		func() error {
			_, err := client.UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: "root", Role: "root"})
			return err
		},
		func() error {
			_, err := client.UserAdd(ctx, &pb.AuthUserAddRequest{Name: "alice", Password: "a"})
			return err
		},
		func() error {
			_, err := client.RoleAdd(ctx, &pb.AuthRoleAddRequest{Name: "app"})
			return err
		},
		func() error {
			_, err := client.RoleGrantPermission(ctx, &pb.AuthRoleGrantPermissionRequest{Name: "app", Perm: perm})
			return err
		},
		func() error {
			_, err := client.UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: "alice", Role: "app"})
			return err
		},
		func() error {
			_, err := client.AuthEnable(ctx, &pb.AuthEnableRequest{})
			return err
		},
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
	}
	login := func(name, password string) context.Context {
		r, err := client.Authenticate(ctx, &pb.AuthenticateRequest{Name: name, Password: password})
		if err != nil {
			t.Fatal(err)
		}
		return metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, r.Token)
	}
	return protected{api: a, store: store, root: login("root", "r"), alice: login("alice", "a")}
}

// A watch without an upper end needs the permission to read all that comes after its key. To etcd 3.7.0 the permission to read that one
// key is enough, and it shows the rest.
func TestOpenEndedWatchNeedsPermission(t *testing.T) {
	a := protect(t)
	for _, c := range []struct {
		name    string
		ctx     context.Context
		end     []byte
		allowed bool
	}{
		{"alice, open", a.alice, []byte{0}, false},
		{"alice, her range", a.alice, []byte("app0"), true},
		{"alice, one key", a.alice, nil, true},
		{"root, open", a.root, []byte{0}, true},
	} {
		client, err := a.watch.Watch(c.ctx)
		if err != nil {
			t.Fatal(err)
		}
		s := stream{t, client}
		s.create(&pb.WatchCreateRequest{Key: []byte("app/"), RangeEnd: c.end})
		if r := s.recv(); r.Canceled == c.allowed {
			t.Errorf("%s: got %v", c.name, r)
		}
	}
}

// A server that is given no Auth trusts everybody: so the API server's own connection works whatever users there are.
func TestServerWithoutAuthTrusts(t *testing.T) {
	a := protect(t)
	trusting := serveStore(t, a.store, etcdshim.Options{})
	trusting.put(t, "other", "1")
	client := pb.NewAuthClient(trusting.conn)
	if r, err := client.AuthStatus(t.Context(), &pb.AuthStatusRequest{}); err != nil || r.Enabled {
		t.Errorf("status: %v, %v", r, err)
	}
	if _, err := client.UserList(t.Context(), &pb.AuthUserListRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("listing users: %v, want that authentication is not enabled", err)
	}
	if _, err := a.kv.Put(t.Context(), &pb.PutRequest{Key: []byte("other")}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("without a token on the other server: %v", err)
	}
}

// The lock service works by the right of its caller.
func TestLockNeedsPermission(t *testing.T) {
	a := protect(t)
	locks := v3lockpb.NewLockClient(a.conn)
	for _, c := range []struct {
		name string
		ctx  context.Context
		lock string
		want string
	}{
		{"alice", a.alice, "app/lock", ""},
		{"alice, elsewhere", a.alice, "lock", rpctypes.ErrPermissionDenied.Error()},
		{"nobody", t.Context(), "app/lock", rpctypes.ErrUserEmpty.Error()},
	} {
		r, err := locks.Lock(c.ctx, &v3lockpb.LockRequest{Name: []byte(c.lock)})
		if said := status.Convert(err).Message(); said != c.want {
			t.Errorf("%s: locking answers %q, want %q", c.name, said, c.want)
		}
		if err == nil {
			if _, err := locks.Unlock(c.ctx, &v3lockpb.UnlockRequest{Key: r.Key}); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
}

// Entries that are no users are found when they are read, not when somebody asks.
func TestBrokenUsers(t *testing.T) {
	store := openStore(t)
	if _, err := store.ChangeAuth(t.Context(), func(sqlstore.AuthState) []sqlstore.AuthEntry {
		return []sqlstore.AuthEntry{{Bucket: "authUsers", Key: "alice", Value: []byte("\xff")}}
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := etcdshim.NewAuth(t.Context(), store, etcdshim.AuthOptions{}); err == nil {
		t.Error("a broken user is not found")
	}
	for _, kind := range []string{"paper", "jwt", "jwt,sign-method=RS256"} {
		if _, err := etcdshim.NewAuth(t.Context(), store, etcdshim.AuthOptions{Token: kind}); err == nil {
			t.Errorf("tokens of kind %q are taken", kind)
		}
	}
}
