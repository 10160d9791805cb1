// Package e2e runs the real programs: kubase as a child process on each backend, and kubectl, client-go and etcdctl against it.
package e2e

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubase/kubase/test/postgrestest"
)

// The programs under test, built from this module: kubase as a user builds it, kubectl and kube-apiserver of the same Kubernetes release, and
// etcdctl of the same etcd release; and Kubernetes' example of an aggregated API server.
var kubase, kubectl, etcdctl, kubeAPIServer, sampleAPIServer string

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "kubase-e2e-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// kubectl refuses to compare versions without one of its own, and an API server needs one for its compatibility version.
	const ldflags = "-s -w -X k8s.io/component-base/version.gitVersion=v1.37.2"
	for _, program := range []struct {
		path    *string
		pkg     string
		ldflags string
	}{
		{&kubase, "github.com/kubase/kubase/cmd/kubase", "-s -w"},
		{&kubectl, "k8s.io/kubernetes/cmd/kubectl", ldflags},
		{&etcdctl, "go.etcd.io/etcd/etcdctl/v3", "-s -w"},
		{&kubeAPIServer, "github.com/kubase/kubase/test/e2e/kube-apiserver", ldflags},
		{&sampleAPIServer, "k8s.io/sample-apiserver", ldflags},
	} {
		*program.path = filepath.Join(dir, path.Base(strings.TrimSuffix(program.pkg, "/v3")))
		build := exec.Command("go", "build", "-ldflags="+program.ldflags, "-o", *program.path, program.pkg)
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			return 1, fmt.Errorf("cannot build %s: %w", program.pkg, err)
		}
	}
	return postgrestest.Run(m), nil
}
