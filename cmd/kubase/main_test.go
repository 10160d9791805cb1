package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"

	"github.com/kubase/kubase/pkg/server"
	"github.com/kubase/kubase/pkg/server/version"
)

// TestFlagsOfKubeAPIServer compares the command lines as a whole; pkg/server compares them flag by flag.
func TestFlagsOfKubeAPIServer(t *testing.T) {
	names := func(fs *pflag.FlagSet) (names []string) {
		fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		return names
	}
	ours := newAPIServerCommand(kubeAPIServer, server.NewKubeAPIServerOptions())
	got := names(ours.Flags())
	for _, name := range names(app.NewAPIServerCommand().Flags()) {
		if !slices.Contains(got, name) {
			t.Errorf("--%s is missing", name)
		}
	}
}

func TestPrintErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("a"), "Error: a\n"},
		{errors.New("a\n  b"), "Error: a b\n"},
		{utilerrors.NewAggregate([]error{errors.New("a"), errors.New("b")}), "Error: a\nError: b\n"},
		{errors.Join(errors.New("a"), errors.New("b")), "Error: a\nError: b\n"},
		{fmt.Errorf("c: %w", errors.New("a")), "Error: c: a\n"},
	} {
		var out strings.Builder
		printErrors(&out, c.err)
		if out.String() != c.want {
			t.Errorf("%v is printed as %q, want %q", c.err, out.String(), c.want)
		}
	}
}

func TestVersionCommand(t *testing.T) {
	var out strings.Builder
	root := newRootCommand()
	root.SetOut(&out)
	root.SetArgs([]string{"version"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), "kubase "+version.String()+"\n") {
		t.Errorf("got %q", out.String())
	}
}

func TestConsoleShowsErrorsWhileServing(t *testing.T) {
	var out, log strings.Builder
	stopped := false
	c := &console{out: &out, log: &log, stopped: func() bool { return stopped }}
	write := func(message string) {
		if n, err := c.Write([]byte(message)); n != len(message) || err != nil {
			t.Errorf("Write returned %d, %v", n, err)
		}
	}
	write("E1 starting\n")
	c.ready("https://127.0.0.1:6443", "dir/admin.kubeconfig")
	write("I2 info\n")
	write("W3 warning\n")
	write("E4 error\n")
	stopped = true
	write("E5 stopping\n")
	write("F6 fatal\n")
	if log.String() != "E4 error\nF6 fatal\n" {
		t.Errorf("the log shows %q", log.String())
	}
	for _, want := range []string{"https://127.0.0.1:6443\n", "kubectl --kubeconfig dir/admin.kubeconfig "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q does not say %q", out.String(), want)
		}
	}
}
