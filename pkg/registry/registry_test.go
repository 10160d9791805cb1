package registry

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
)

// Every version that can be served must have a priority: the aggregator registers no APIService for one without.
func TestEveryServableVersionHasPriority(t *testing.T) {
	priorities := Priorities()
	for gv := range Enabled().GroupVersionConfigs {
		if _, ok := priorities[gv]; !ok {
			t.Errorf("%s can be served, but the table has no row for it", gv)
		}
		delete(priorities, gv)
	}
	delete(priorities, schema.GroupVersion{Group: "apiextensions.k8s.io", Version: "v1"})
	for gv := range priorities {
		t.Errorf("the table has a row for %s, which nothing can serve", gv)
	}
}

func TestPrioritiesAreKubernetesOwn(t *testing.T) {
	upstream := controlplaneapiserver.DefaultGenericAPIServicePriorities()
	// The full server overrides this one.
	upstream[schema.GroupVersion{Group: "resource.k8s.io", Version: "v1alpha3"}] = controlplaneapiserver.APIServicePriority{Group: 16200, Version: 1}
	for gv, ours := range Priorities() {
		if theirs, ok := upstream[gv]; ok && ours != theirs {
			t.Errorf("%s has priority %v, want %v", gv, ours, theirs)
		}
	}
}
