package server

import (
	"fmt"

	extensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registry "k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/util/webhook"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"

	"github.com/kubase/kubase/pkg/server/datastore"
)

// Config has the configuration of each server of the chain, in the order in which a request meets them.
type Config struct {
	aggregator *aggregatorapiserver.Config
	core       *coreConfig
	extensions *extensionsapiserver.Config
}

// NewConfig makes everything the servers need and runs none of it. The store is nil if the objects are kept in etcd.
func NewConfig(o CompletedOptions, store *datastore.Datastore, connections *etcdConnections) (*Config, error) {
	generic, err := newGenericConfig(o, store, connections)
	if err != nil {
		return nil, err
	}
	core, err := newCoreConfig(o, generic)
	if err != nil {
		return nil, err
	}
	core.datastores = &datastores{connections: connections, store: store, client: generic.client, started: metav1.Now()}
	upstream := o.CompletedOptions.CompletedOptions
	webhooks := webhook.NewDefaultAuthenticationInfoResolverWrapper(
		core.controlPlane.ProxyTransport, generic.EgressSelector, generic.LoopbackClientConfig, generic.TracerProvider)

	extensions, err := controlplaneapiserver.CreateAPIExtensionsConfig(
		*generic.Config, generic.informers, core.initializers, upstream, o.MasterCount, core.serviceResolver, webhooks)
	if err != nil {
		return nil, fmt.Errorf("cannot configure the extension server: %w", err)
	}
	aggregator, err := controlplaneapiserver.CreateAggregatorConfig(
		*generic.Config, upstream, generic.informers, core.serviceResolver, core.controlPlane.ProxyTransport, core.controlPlane.PeerProxy, core.initializers)
	if err != nil {
		return nil, fmt.Errorf("cannot configure the aggregator: %w", err)
	}
	if store != nil {
		explainReadiness(&aggregator.GenericConfig.Config, func() string { s := store.Status(); return s.String() })
	}
	for _, getter := range []*registry.RESTOptionsGetter{
		&extensions.GenericConfig.RESTOptionsGetter,
		&extensions.ExtraConfig.CRDRESTOptionsGetter,
		&aggregator.GenericConfig.RESTOptionsGetter,
	} {
		if *getter, err = connections.share(*getter, o.Etcd); err != nil {
			return nil, err
		}
	}
	return &Config{aggregator: aggregator, core: core, extensions: extensions}, nil
}

type completedConfig struct {
	aggregator aggregatorapiserver.CompletedConfig
	core       completedCoreConfig
	extensions extensionsapiserver.CompletedConfig
}

// CompletedConfig can only be made by Complete.
type CompletedConfig struct {
	*completedConfig
}

// Complete fills in what follows from the rest.
func (c *Config) Complete() CompletedConfig {
	return CompletedConfig{&completedConfig{
		aggregator: c.aggregator.Complete(),
		core:       c.core.Complete(),
		extensions: c.extensions.Complete(),
	}}
}
