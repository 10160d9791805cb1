package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestHelm has helm install a chart with a bit of everything, change it, take the change back and remove it.
func TestHelm(t *testing.T) {
	t.Parallel()
	helm, s := build(t, "helm", "helm.sh/helm/v3/cmd/helm"), start(t, t.TempDir())
	try := func(args ...string) (out, errs string, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		command := exec.CommandContext(ctx, helm, append([]string{"--kubeconfig=" + s.kubeconfig, "--namespace=garden"}, args...)...)
		command.Env = append(command.Environ(), "HOME="+s.dir)
		var o, e bytes.Buffer
		command.Stdout, command.Stderr = &o, &e
		err = command.Run()
		return o.String(), e.String(), err
	}
	must := func(args ...string) string {
		t.Helper()
		out, errs, err := try(args...)
		if err != nil {
			t.Fatalf("helm %s: %v\n%s%s", strings.Join(args, " "), err, out, errs)
		}
		return out
	}
	in := "--namespace=garden"
	// has wants these colour and replicas in all objects, and the hook last run for this revision.
	has := func(colour, replicas, revision string) {
		t.Helper()
		for _, object := range []struct{ name, path, want string }{
			{"configmap/web-settings", "{.data.colour}", colour},
			{"rose/web", "{.spec.colour}", colour},
			{"deployment/web", "{.spec.replicas}", replicas},
			{"service/web", "{.spec.ports[0].port}", "80"},
			{"configmap/web-hook", "{.data.revision}", revision},
		} {
			if got := s.kubectl(t, "get", object.name, in, "-o", "jsonpath="+object.path); got != object.want {
				t.Errorf("%s has %s %q, want %q", object.name, object.path, got, object.want)
			}
		}
	}

	contains(t, must("install", "web", "testdata/chart", "--create-namespace"), "STATUS: deployed", "REVISION: 1")
	has("red", "1", "1")
	if _, errs, err := try("install", "web", "testdata/chart"); err == nil {
		t.Error("helm installed a second release of the name")
	} else {
		contains(t, errs, "cannot re-use a name that is still in use")
	}
	contains(t, must("upgrade", "web", "testdata/chart", "--set=replicas=3,colour=white"), "REVISION: 2")
	has("white", "3", "2")

	// What the server refuses is a failed revision.
	if _, errs, err := try("upgrade", "web", "testdata/chart", "--set=colour=blue"); err == nil {
		t.Error("helm upgraded to a rose that the schema refuses")
	} else {
		contains(t, errs, `spec.colour: Unsupported value: "blue"`)
	}
	contains(t, must("rollback", "web", "1"), "Rollback was a success")
	has("red", "1", "2") // the hook is not one of rollbacks

	type revision struct {
		Revision    int
		Status      string
		Description string
	}
	var history []revision
	if err := json.Unmarshal([]byte(must("history", "web", "--output=json")), &history); err != nil {
		t.Fatal(err)
	}
	if len(history) == 4 {
		history[2].Description = "" // the server's words
	}
	if want := []revision{
		{1, "superseded", "Install complete"}, {2, "superseded", "Upgrade complete"}, {3, "failed", ""}, {4, "deployed", "Rollback to 1"},
	}; !slices.Equal(history, want) {
		t.Errorf("the history is %v, want %v", history, want)
	}
	contains(t, must("get", "manifest", "web"), "kind: Rose", "colour: \"red\"")

	contains(t, must("uninstall", "web"), `release "web" uninstalled`)
	// helm leaves hooks and definitions alone; the ConfigMap kube-root-ca.crt is the namespace's own.
	left := strings.Fields(s.kubectl(t, "get", "deployments,services,roses,configmaps,secrets", in, "-o", "name"))
	slices.Sort(left)
	if want := []string{"configmap/kube-root-ca.crt", "configmap/web-hook"}; !slices.Equal(left, want) {
		t.Errorf("helm left %v, want %v", left, want)
	}
	contains(t, s.kubectl(t, "get", "crds", "-o", "name"), "roses.garden.example.com")
}
