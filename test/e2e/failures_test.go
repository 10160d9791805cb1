package e2e

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kubase/kubase/test/postgrestest"
)

const password = "xyzzy"

// TestFailures starts the server where it cannot work. Each failure is one line that says what is wrong.
func TestFailures(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	takenPort := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wrongPassword := withUser(t, postgrestest.Database(t), "nobody", password)
	running := start(t, t.TempDir())
	for _, c := range []struct {
		name  string
		flags []string
		want  []string
	}{
		{"unknown backend", []string{"--storage-backend=mysql"}, []string{"--storage-backend", "mysql", "sqlite, postgres, etcd3"}},
		{"unknown flag", []string{"--storage-backen=sqlite"}, []string{"unknown flag: --storage-backen"}},
		{"port in use", []string{"--secure-port=" + takenPort}, []string{takenPort, "address already in use", "--secure-port"}},
		{"unknown scheme", []string{"--datastore-dsn=mysql://user:" + password + "@127.0.0.1/x"}, []string{"mysql", "neither sqlite nor postgres"}},
		{"no DSN", []string{"--storage-backend=postgres"}, []string{"needs a DSN", "--datastore-dsn"}},
		{"DSN of another backend", []string{"--storage-backend=postgres", "--datastore-dsn=sqlite:///x"}, []string{"postgres", "sqlite"}},
		{"unreadable DSN", []string{"--datastore-dsn=postgres://user:" + password + "@127.0.0.1:port/x"}, []string{"cannot open the datastore"}},
		{"missing DSN file", []string{"--datastore-dsn-file=" + file + ".none"}, []string{"--datastore-dsn-file", "no such file"}},
		{"unreachable Postgres", []string{"--datastore-dsn=postgres://user:" + password + "@127.0.0.1:1/x", "--datastore-connect-timeout=3s"}, []string{"127.0.0.1", "connection refused"}},
		{"wrong password", []string{"--datastore-dsn=" + wrongPassword}, []string{"cannot open the datastore"}},
		{"SQLite file in use", []string{"--datastore-dsn=sqlite://" + filepath.Join(running.dir, "kubase.db")}, []string{"kubase.db", "is in use by process"}},
		{"unusable data directory", []string{"--data-dir=" + filepath.Join(file, "data")}, []string{"--data-dir", file}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lines := failure(t, append([]string{"apiserver", "--data-dir=" + t.TempDir(), fmt.Sprintf("--secure-port=%d", freePort(t))}, c.flags...)...)
			if len(lines) != 1 || !strings.HasPrefix(lines[0], "Error: ") {
				t.Errorf("got %d lines, want one that begins with Error:\n%s", len(lines), strings.Join(lines, "\n"))
			}
			contains(t, lines[0], c.want...)
			if strings.Contains(lines[0], password) {
				t.Error("the password is shown")
			}
		})
	}
}

// withUser is the DSN with another user.
func withUser(t *testing.T, dsn, user, password string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}
