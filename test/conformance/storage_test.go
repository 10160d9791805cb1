// Package conformance runs other people's tests and tools against kubase.
package conformance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubase/kubase/test/conformance/testserver"
)

// module is the one whose tests are run.
const module = "k8s.io/apiserver"

// The packages whose tests reach storage through etcd, and how: the etcd3 store itself, the watch cache above it, and the factory
// that connects the two (with TLS).
var packages = []string{
	module + "/pkg/storage/etcd3",
	module + "/pkg/storage/cacher",
	module + "/pkg/storage/storagebackend/factory",
}

// TestKubernetesStorage runs Kubernetes' own storage tests, all of them, unchanged, on each engine. They start their server with
// package testserver, in whose place a copy of the module gets ours. The watch cache compares itself with the store all the
// while and panics if they differ.
func TestKubernetesStorage(t *testing.T) {
	modfile := copyModule(t)
	for _, engine := range []string{"sqlite", "postgres"} {
		t.Run(engine, func(t *testing.T) {
			scratch := scratchDir(t)
			args := append([]string{"test", "-modfile", modfile, "-timeout", "10m", "-p", "1"}, packages...)
			cmd := exec.Command("go", args...)
			cmd.Env = append(os.Environ(),
				testserver.EngineVariable+"="+engine,
				"KUBE_WATCHCACHE_CONSISTENCY_CHECKER=true",
				"TMPDIR="+scratch)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, failures(string(out)))
			}
			for _, p := range packages {
				if !strings.Contains(string(out), "ok  \t"+p) {
					t.Errorf("the tests of %s did not run:\n%s", p, out)
				}
			}
			t.Logf("%s", out)
		})
	}
}

// copyModule makes a copy of the module with our testserver and a go.mod that uses it. The copy stays where it is, so that what is
// built from it is in the build cache the next time.
func copyModule(t *testing.T) (modfile string) {
	source := output(t, "go", "list", "-m", "-f", "{{.Dir}}", module)
	version := output(t, "go", "list", "-m", "-f", "{{.Version}}", module)
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "kubase-test", filepath.Base(module)+"@"+version)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		copyDir(t, source, dir)
	}
	root := filepath.Dir(output(t, "go", "env", "GOMOD"))
	replaceFile(t, filepath.Join(root, "test/conformance/testserver/testserver.go"),
		filepath.Join(dir, "pkg/storage/etcd3/testserver/test_server.go"))

	modfile = filepath.Join(t.TempDir(), "go.mod")
	replaceFile(t, filepath.Join(root, "go.mod"), modfile)
	replaceFile(t, filepath.Join(root, "go.sum"), strings.TrimSuffix(modfile, "mod")+"sum")
	output(t, "go", "mod", "edit", fmt.Sprintf("-replace=%s=%s", module, dir), modfile)
	return modfile
}

// copyDir copies a directory; the copy is there as a whole or not at all.
func copyDir(t *testing.T, from, to string) {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	unfinished, err := os.MkdirTemp(filepath.Dir(to), "unfinished-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(unfinished, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(unfinished, to); err != nil {
		t.Fatal(err)
	}
}

// replaceFile copies a file over another one, which may be write-protected as all files of a module are.
func replaceFile(t *testing.T, from, to string) {
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// scratchDir is a directory for temporary files that other users may look into: Postgres does not run as root.
func scratchDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "kubase-conformance-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func output(t *testing.T, name string, args ...string) string {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, exit.Stderr)
		}
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// failures leaves of a test's output what says what failed and why: the lines of tests, and the last ones.
func failures(out string) string {
	const last = 50
	lines := strings.Split(out, "\n")
	var said []string
	for i, line := range lines {
		if i >= len(lines)-last || strings.Contains(line, "--- FAIL") || strings.Contains(line, "_test.go:") ||
			strings.Contains(line, "_tests.go:") || strings.HasPrefix(line, "panic:") {
			said = append(said, line)
		}
	}
	return strings.Join(said, "\n")
}
