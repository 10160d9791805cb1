package server

import (
	"context"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	noopoteltrace "go.opentelemetry.io/otel/trace/noop"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server/egressselector"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// TestWatchCacheIsUpstreamsChoice asks upstream's RESTOptionsGetter and ours which resources have a watch cache.
func TestWatchCacheIsUpstreamsChoice(t *testing.T) {
	connections := newEtcdConnections()
	code := func(d generic.StorageDecorator) uintptr { return reflect.ValueOf(d).Pointer() }
	for _, flags := range [][]string{nil, {"--watch-cache=false"}, {"--watch-cache-sizes=pods#0,deployments.apps#7"}} {
		o := mustComplete(t, NewOptions(), append(flags, "--data-dir="+filepath.Join(t.TempDir(), "data"))...).Etcd
		upstream := o.CreateRESTOptionsGetter(&genericoptions.SimpleStorageFactory{StorageConfig: o.StorageConfig}, nil)
		ours, err := connections.share(upstream, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, resource := range []string{"pods", "events", "events.events.k8s.io", "deployments.apps", "widgets.example.com"} {
			gr := schema.ParseGroupResource(resource)
			theirs, err := upstream.GetRESTOptions(gr, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := ours.GetRESTOptions(gr, nil)
			if err != nil {
				t.Fatal(err)
			}
			want := code(connections.cached)
			if code(theirs.Decorator) == code(generic.UndecoratedStorage) {
				want = code(connections.uncached)
			}
			if code(got.Decorator) != want {
				t.Errorf("%q: the watch cache of %s is not as upstream has it", flags, resource)
			}
			got.Decorator, theirs.Decorator = nil, nil
			if !reflect.DeepEqual(got, theirs) {
				t.Errorf("%q: the other options of %s differ", flags, resource)
			}
		}
	}
}

// TestOneConnectionForAllResources counts what is dialed.
func TestOneConnectionForAllResources(t *testing.T) {
	etcd := startEtcd(t)
	var dialed atomic.Int32
	config := storagebackend.NewDefaultConfig("/one", legacyscheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion))
	config.Transport = storagebackend.TransportConfig{
		ServerList:     []string{datastoreEndpoint}, // nothing could resolve it
		TracerProvider: noopoteltrace.NewTracerProvider(),
		EgressLookup: func(egressselector.NetworkContext) (dialer, error) {
			return func(ctx context.Context, network, _ string) (net.Conn, error) {
				dialed.Add(1)
				return (&net.Dialer{}).DialContext(ctx, network, strings.TrimPrefix(etcd, "http://"))
			}, nil
		},
	}
	connections := newEtcdConnections()
	newFunc := func() runtime.Object { return &corev1.ConfigMap{} }
	newListFunc := func() runtime.Object { return &corev1.ConfigMapList{} }
	for _, resource := range []string{"configmaps", "secrets", "pods"} {
		forResource := config.ForResource(schema.GroupResource{Resource: resource})
		store, destroy, err := connections.newStorage(forResource, "/"+resource, newFunc, newListFunc)
		if err != nil {
			t.Fatal(err)
		}
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"resource": resource}}
		got := &corev1.ConfigMap{}
		if err := store.Create(t.Context(), "/"+resource+"/a", object, got, 60); err != nil { // with a lease
			t.Error(err)
		}
		if got.Data["resource"] != resource || got.ResourceVersion == "" {
			t.Errorf("%s: stored %v", resource, got)
		}
		// The end of one resource, such as a custom one, is not the end of the others.
		destroy()
		destroy()
	}
	// One to keep, and one on which the client asks, once, for the server's version.
	if n := dialed.Load(); n < 1 || n > 2 {
		t.Errorf("%d connections, want one that stays", n)
	}
	if err := connections.Close(); err != nil {
		t.Error(err)
	}
}
