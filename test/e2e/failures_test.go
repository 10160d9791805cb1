package e2e

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

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
	for _, c := range []struct {
		name  string
		flags []string
		want  []string
	}{
		{"unknown backend", []string{"--storage-backend=mysql"}, []string{"--storage-backend", "mysql", "sqlite, postgres, etcd3"}},
		{"unknown flag", []string{"--storage-backen=sqlite"}, []string{"unknown flag: --storage-backen"}},
		{"port in use", []string{"--secure-port=" + takenPort}, []string{takenPort, "address already in use", "--secure-port"}},
		{"unusable data directory", []string{"--data-dir=" + filepath.Join(file, "data")}, []string{"--data-dir", file}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lines := failure(t, append([]string{"apiserver", "--data-dir=" + t.TempDir()}, c.flags...)...)
			if len(lines) != 1 || !strings.HasPrefix(lines[0], "Error: ") {
				t.Errorf("got %d lines, want one that begins with Error:\n%s", len(lines), strings.Join(lines, "\n"))
			}
			contains(t, lines[0], c.want...)
		})
	}
}
