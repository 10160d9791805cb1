package version

import (
	"os"
	"regexp"
	"testing"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/util/compatibility"
	baseversion "k8s.io/component-base/version"
)

func TestVersionReachesComponentBase(t *testing.T) {
	info := baseversion.Get()
	if info.GitVersion != String() || info.Major != "1" || info.Minor != "37" {
		t.Errorf("component-base says %q (%s.%s), want %q (1.37)", info.GitVersion, info.Major, info.Minor, String())
	}
	effective := compatibility.DefaultBuildEffectiveVersion()
	if got := effective.BinaryVersion().String(); got != utilversion.MustParse(String()).String() {
		t.Errorf("the effective binary version is %q, want that of %q", got, String())
	}
	if got := effective.EmulationVersion().String(); got != baseversion.DefaultKubeBinaryVersion {
		t.Errorf("the emulation version is %q, want %q", got, baseversion.DefaultKubeBinaryVersion)
	}
	if errs := effective.Validate(); len(errs) != 0 {
		t.Error(errs)
	}
}

func TestVersionIsThatOfTheModules(t *testing.T) {
	gomod, err := os.ReadFile("../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes (v\S+)$`).FindSubmatch(gomod)
	if found == nil || string(found[1]) != Kubernetes {
		t.Errorf("go.mod pins k8s.io/kubernetes %q, the version is made of %q", found, Kubernetes)
	}
}
