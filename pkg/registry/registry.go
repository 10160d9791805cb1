// Package registry says what the core API server serves: one table of API groups, in the order of discovery, with what
// stores the resources of each.
package registry

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"

	"github.com/kubase/kubase/pkg/registry/datastore"
	"github.com/kubase/kubase/pkg/registry/datastore/v1alpha1"
)

// Config is what the storage of the API groups is built from.
type Config struct {
	ControlPlane controlplaneapiserver.CompletedConfig
	Client       clientset.Interface // talks to this server
	Proxy        corerest.ProxyConfig
	Services     corerest.ServicesConfig
	Datastores   datastore.Source
}

// Providers returns what stores the resources of each group that the core server serves, in the order of discovery.
func Providers(c Config) ([]controlplaneapiserver.RESTStorageProvider, error) {
	var providers []controlplaneapiserver.RESTStorageProvider
	for _, g := range groups {
		if g.storage == nil {
			continue
		}
		provider, err := g.storage(c)
		if err != nil {
			return nil, fmt.Errorf("cannot build the storage of API group %q: %w", g.name, err)
		}
		providers = append(providers, provider)
	}
	return providers, nil
}

// Priorities returns the priorities of every API group and version of the table, for the APIService objects that
// the aggregator registers. Where two groups serve a resource of one name, a client that gives no group gets the one
// with the higher priority.
func Priorities() map[schema.GroupVersion]controlplaneapiserver.APIServicePriority {
	priorities := map[schema.GroupVersion]controlplaneapiserver.APIServicePriority{}
	for _, g := range groups {
		for _, v := range g.versions {
			gv := schema.GroupVersion{Group: g.name, Version: v.name}
			priorities[gv] = controlplaneapiserver.APIServicePriority{Group: g.priority, Version: v.priority}
		}
	}
	return priorities
}

// Enabled says which versions are served when --runtime-config says nothing: the stable ones, and our own.
func Enabled() *serverstorage.ResourceConfig {
	enabled := controlplane.DefaultAPIResourceConfigSource()
	enabled.EnableVersions(v1alpha1.SchemeGroupVersion)
	return enabled
}
