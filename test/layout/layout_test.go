// Package layout checks what must stay true of the tree.
package layout

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const kubase = "github.com/kubase/kubase/"

// rules says what the packages below a path may not import, directly. Tests may import what they like.
var rules = []struct {
	packages string
	except   string
	forbids  []string
	why      string
}{
	{
		packages: "migrations",
		forbids:  []string{kubase, "k8s.io/", "go.etcd.io/", "google.golang.org/grpc"},
		why:      "migrations are SQL and nothing else",
	},
	{
		packages: "pkg/sqlstore",
		except:   "pkg/sqlstore/",
		forbids:  []string{kubase, "k8s.io/", "go.etcd.io/", "google.golang.org/", "github.com/jackc/", "github.com/mattn/", "database/sql"},
		why:      "the store's model knows no driver, no etcd and no Kubernetes",
	},
	{
		packages: "pkg/sqlstore/sqlite",
		forbids:  []string{kubase + "pkg/server", kubase + "pkg/etcdshim", kubase + "pkg/sqlstore/postgres", "k8s.io/", "go.etcd.io/"},
		why:      "an engine knows the store and the migrations",
	},
	{
		packages: "pkg/sqlstore/postgres",
		forbids:  []string{kubase + "pkg/server", kubase + "pkg/etcdshim", kubase + "pkg/sqlstore/sqlite", "k8s.io/", "go.etcd.io/"},
		why:      "an engine knows the store and the migrations",
	},
	{
		packages: "pkg/etcdshim",
		forbids:  []string{kubase + "pkg/server", kubase + "pkg/sqlstore/", kubase + "migrations", "k8s.io/", "github.com/jackc/", "github.com/mattn/"},
		why:      "the etcd API knows the store, not its engines, and no Kubernetes",
	},
	{
		packages: "pkg/registry",
		forbids:  []string{kubase + "pkg/server", kubase + "pkg/etcdshim", kubase + "pkg/sqlstore", kubase + "migrations"},
		why:      "what is served does not depend on where it is kept",
	},
	{
		packages: "pkg/server/lifecycle",
		forbids:  []string{kubase, "go.etcd.io/"},
		why:      "controllers know the API and nothing behind it",
	},
	{
		packages: "pkg/server/openapi",
		forbids:  []string{kubase, "go.etcd.io/"},
		why:      "documents are made of the routes of a server, whichever it is",
	},
	{
		packages: "cmd",
		forbids:  []string{kubase + "pkg/etcdshim", kubase + "pkg/sqlstore", kubase + "pkg/registry", kubase + "migrations"},
		why:      "commands start what pkg/server composes",
	},
}

// TestImports holds the tree to the import rules of ARCHITECTURE.md.
func TestImports(t *testing.T) {
	imports := importsOf(t)
	for _, rule := range rules {
		matched := false
		for pkg, imported := range imports {
			inside := pkg == kubase+rule.packages || strings.HasPrefix(pkg, kubase+rule.packages+"/")
			if !inside || rule.except != "" && strings.HasPrefix(pkg, kubase+rule.except) {
				continue
			}
			matched = true
			for _, path := range imported {
				for _, forbidden := range rule.forbids {
					if strings.HasPrefix(path, forbidden) {
						t.Errorf("%s imports %s: %s", pkg, path, rule.why)
					}
				}
			}
		}
		if !matched {
			t.Errorf("there is no package below %s", rule.packages)
		}
	}
}

// TestEnginesAreNamedOnce: one file chooses between the engines.
func TestEnginesAreNamedOnce(t *testing.T) {
	for pkg, imported := range importsOf(t) {
		if strings.HasPrefix(pkg, kubase+"test/") || pkg == kubase+"pkg/server/datastore" {
			continue
		}
		for _, path := range imported {
			if path == kubase+"pkg/sqlstore/sqlite" || path == kubase+"pkg/sqlstore/postgres" {
				t.Errorf("%s imports %s: only pkg/server/datastore names the engines", pkg, path)
			}
		}
	}
}

// TestSQLOnlyInEngines: statements stand in the engines and migrations.
func TestSQLOnlyInEngines(t *testing.T) {
	walk(t, func(path, line string) {
		if strings.HasPrefix(path, "pkg/sqlstore/sqlite/") || strings.HasPrefix(path, "pkg/sqlstore/postgres/") ||
			strings.HasPrefix(path, "migrations/") || strings.HasPrefix(path, "test/") {
			return
		}
		for _, verb := range []string{"SELECT ", "INSERT INTO ", "DELETE FROM ", "CREATE TABLE "} {
			if strings.Contains(line, verb) {
				t.Errorf("%s has SQL: %s", path, strings.TrimSpace(line))
			}
		}
	})
}

// TestFilesAreSmall: a file that has grown past this holds two things.
func TestFilesAreSmall(t *testing.T) {
	const most = 600
	lines := map[string]int{}
	walk(t, func(path, _ string) { lines[path]++ })
	for path, n := range lines {
		if n > most {
			t.Errorf("%s has %d lines, more than %d: split it", path, n, most)
		}
	}
}

// importsOf lists what each package of the module imports, its tests left out.
func importsOf(t *testing.T) map[string][]string {
	cmd := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "./...")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	imports := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		imports[fields[0]] = fields[1:]
	}
	return imports
}

// walk calls visit for each line of each Go file.
func walk(t *testing.T, visit func(path, line string)) {
	top := root(t)
	err := filepath.WalkDir(top, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != top {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		name, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			visit(filepath.ToSlash(name), lines.Text())
		}
		return lines.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func root(t *testing.T) string {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
}
