package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/metadata"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubase/kubase/test/postgrestest"
)

// cheapPasswords is for tests in which passwords are hashed often.
const cheapPasswords = "--bcrypt-cost=4"

// protect turns authentication on. Its users are root, and alice who may do everything below app/.
func protect(t *testing.T, client *clientv3.Client) {
	t.Helper()
	ctx := t.Context()
	for _, change := range []func() error{
		func() error { _, err := client.UserAdd(ctx, "root", "r"); return err },
		func() error { _, err := client.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := client.UserAdd(ctx, "alice", "a"); return err },
		func() error { _, err := client.RoleAdd(ctx, "app"); return err },
		func() error { return grantApp(ctx, client) },
		func() error { _, err := client.UserGrantRole(ctx, "alice", "app"); return err },
		func() error { _, err := client.AuthEnable(ctx); return err },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
	}
}

func grantApp(ctx context.Context, client *clientv3.Client) error {
	_, err := client.RoleGrantPermission(ctx, "app", "app/", "app0", clientv3.PermissionType(clientv3.PermReadWrite))
	return err
}

// userClient is a client that logs in.
func userClient(t *testing.T, name, password string, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialTimeout: patience, Logger: zap.NewNop(), Username: name, Password: password,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() }) // its server may be gone
	return client
}

func expectError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// TestAuthOnSharedDatabase has two servers on one database. What an administrator changes through one of them counts in the other as soon
// as he has his answer; tokens are good where they were given.
func TestAuthOnSharedDatabase(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dsn := "--datastore-dsn=" + postgrestest.Database(t)
	endpoints := make([]string, 2)
	processes := make([]*etcdProcess, 2)
	for i := range endpoints {
		endpoints[i] = fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
		processes[i] = startEtcdShim(t, dsn, "--listen-client-urls="+endpoints[i], cheapPasswords)
	}
	stranger := etcdClient(t, endpoints[1], nil)
	if _, err := stranger.Put(ctx, "app/a", "1"); err != nil {
		t.Fatal(err)
	}
	protect(t, etcdClient(t, endpoints[0], nil))
	_, err := stranger.Get(ctx, "app/a")
	expectError(t, "a stranger reads", err, rpctypes.ErrUserEmpty)
	_, err = stranger.Put(ctx, "app/a", "2")
	expectError(t, "a stranger writes", err, rpctypes.ErrUserEmpty)
	_, err = stranger.Grant(ctx, 100)
	expectError(t, "a stranger is granted a lease", err, rpctypes.ErrUserEmpty)
	watched := <-stranger.Watch(ctx, "app/a")
	contains(t, fmt.Sprint(watched.Err()), rpctypes.ErrUserEmpty.Error())

	root, alice := userClient(t, "root", "r", endpoints[0]), userClient(t, "alice", "a", endpoints[1])
	put := func() error { _, err := alice.Put(ctx, "app/a", "3"); return err }
	revoke := func() {
		t.Helper()
		if _, err := root.RoleRevokePermission(ctx, "app", "app/", "app0"); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if err := put(); err != nil {
			t.Fatalf("alice is refused what she may do: %v", err)
		}
		revoke()
		expectError(t, "alice writes", put(), rpctypes.ErrPermissionDenied)
		_, err := alice.Get(ctx, "app/a")
		expectError(t, "alice reads", err, rpctypes.ErrPermissionDenied)
		if err := grantApp(ctx, root); err != nil {
			t.Fatal(err)
		}
	}

	// Nothing that alice writes is committed after the administrator has his answer.
	var acknowledged atomic.Int64
	denied := make(chan error)
	go func() {
		for {
			r, err := alice.Put(ctx, "app/b", "1")
			if err != nil {
				denied <- err
				return
			}
			acknowledged.Store(r.Header.Revision)
		}
	}()
	for acknowledged.Load() == 0 && ctx.Err() == nil {
		if _, err := root.Get(ctx, "app/b"); err != nil {
			t.Fatal(err)
		}
	}
	revoke()
	last, err := root.Get(ctx, "app/b")
	if err != nil {
		t.Fatal(err)
	}
	expectError(t, "alice goes on writing", <-denied, rpctypes.ErrPermissionDenied)
	after, err := root.Get(ctx, "app/b")
	if err != nil || after.Kvs[0].ModRevision != last.Kvs[0].ModRevision {
		t.Errorf("app/b was at revision %d when alice lost her permission, and is now %v, %v", last.Kvs[0].ModRevision, after, err)
	}
	if err := grantApp(ctx, root); err != nil {
		t.Fatal(err)
	}

	// A token of one server is void on the other, and everywhere once the password is another one.
	login, err := etcdClient(t, endpoints[0], nil).Authenticate(ctx, "alice", "a")
	if err != nil {
		t.Fatal(err)
	}
	withToken := metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, login.Token)
	if _, err := etcdClient(t, endpoints[0], nil).Get(withToken, "app/a"); err != nil {
		t.Errorf("the token where it was given: %v", err)
	}
	_, err = stranger.Get(withToken, "app/a")
	expectError(t, "the token elsewhere", err, rpctypes.ErrInvalidAuthToken)
	if _, err := userClient(t, "root", "r", endpoints[1]).UserChangePassword(ctx, "alice", "b"); err != nil {
		t.Fatal(err)
	}
	_, err = etcdClient(t, endpoints[0], nil).Get(withToken, "app/a")
	expectError(t, "the token after a change of the password", err, rpctypes.ErrInvalidAuthToken)

	// A client whose server is gone logs in where it gets.
	failingOver := userClient(t, "alice", "b", endpoints[0])
	if _, err := failingOver.Get(ctx, "app/a"); err != nil {
		t.Error(err)
	}
	failingOver.SetEndpoints(endpoints...)
	processes[0].stop(t)
	if _, err := failingOver.Get(ctx, "app/a"); err != nil {
		t.Errorf("after the first server has stopped: %v", err)
	}
	restarted := startEtcdShim(t, dsn, "--listen-client-urls="+endpoints[0], cheapPasswords)
	_, err = etcdClient(t, endpoints[0], nil).Get(ctx, "app/a")
	expectError(t, "a stranger after a restart", err, rpctypes.ErrUserEmpty)
	if _, err := userClient(t, "root", "r", endpoints[0]).AuthDisable(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.Get(ctx, "app/a"); err != nil {
		t.Errorf("a stranger where authentication is off: %v", err)
	}
	restarted.stop(t)
}

// TestAuthByJWT has a client that takes turns between two servers: tokens signed with a key that both have are good for both.
func TestAuthByJWT(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("a secret of more than thirty-two bytes"), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens := "--auth-token=jwt,sign-method=HS256,priv-key=" + key + ",ttl=10m"
	dsn := postgrestest.Database(t)
	endpoints := []string{serveEtcd(t, dsn, tokens, cheapPasswords), serveEtcd(t, dsn, tokens, cheapPasswords)}
	protect(t, etcdClient(t, endpoints[0], nil))
	alice, root := userClient(t, "alice", "a", endpoints...), userClient(t, "root", "r", endpoints...)
	for i := range 10 {
		if _, err := alice.Put(ctx, fmt.Sprintf("app/%d", i), "1"); err != nil {
			t.Errorf("put %d: %v", i, err)
		}
		if i == 5 { // makes all tokens old: clients log in again
			if err := grantApp(ctx, root); err != nil {
				t.Error(err)
			}
		}
	}
	_, err := etcdClient(t, endpoints[1], nil).Get(ctx, "app/1")
	expectError(t, "a stranger", err, rpctypes.ErrUserEmpty)
}

// TestAuthByCertificate takes the common name of a client's certificate for the name of a user.
func TestAuthByCertificate(t *testing.T) {
	t.Parallel()
	certs := makeCertificates(t)
	address := fmt.Sprintf("https://127.0.0.1:%d", freePort(t))
	startEtcdShim(t, "--datastore-dsn=sqlite://"+filepath.Join(t.TempDir(), "kubase.db"), "--listen-client-urls="+address, cheapPasswords,
		"--cert-file="+certs.serving.CertFile, "--key-file="+certs.serving.KeyFile, "--trusted-ca-file="+certs.ca.CertFile, "--client-cert-auth")
	client := etcdClient(t, address, certs.clientInfo())
	ctx := t.Context()
	if _, err := client.UserAddWithOptions(ctx, certificateName, "", &clientv3.UserAddOptions{NoPassword: true}); err != nil {
		t.Fatal(err)
	}
	protect(t, client)
	_, err := client.Put(ctx, "app/a", "1")
	expectError(t, "before the role is granted", err, rpctypes.ErrPermissionDenied)
	login, err := client.Authenticate(ctx, "root", "r")
	if err != nil {
		t.Fatal(err)
	}
	asRoot := metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, login.Token)
	if _, err := client.UserGrantRole(asRoot, certificateName, "app"); err != nil {
		t.Errorf("a token goes before a certificate: %v", err)
	}
	if _, err := client.Put(ctx, "app/a", "1"); err != nil {
		t.Error(err)
	}
	_, err = client.Get(ctx, "other")
	expectError(t, "beyond the role", err, rpctypes.ErrPermissionDenied)
}

// TestAuthDoesNotConcernTheAPIServer turns authentication on in the datastore of a running API server, through its socket.
func TestAuthDoesNotConcernTheAPIServer(t *testing.T) {
	t.Parallel()
	socket := "unix://" + filepath.Join(t.TempDir(), "datastore.sock")
	s := start(t, t.TempDir(), "--datastore-listen="+socket)
	stranger := etcdClient(t, socket, nil)
	protect(t, stranger)
	_, err := stranger.Get(t.Context(), defaultNamespace)
	expectError(t, "a stranger at the socket", err, rpctypes.ErrUserEmpty)
	s.kubectl(t, "create", "configmap", "c", "--from-literal=a=1")
	c, err := s.client.CoreV1().ConfigMaps("default").Get(t.Context(), "c", metav1.GetOptions{})
	if err != nil || c.Data["a"] != "1" {
		t.Errorf("the config map: %v, %v", c, err)
	}
	s.stop(t)
	if strings.Contains(s.log.String(), "user name is empty") {
		t.Errorf("the API server's own connection was refused:\n%s", s.log)
	}
}
