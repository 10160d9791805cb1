package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"

	"github.com/kubase/kubase/pkg/registry"
	"github.com/kubase/kubase/pkg/server/datastore"
)

const (
	// readyPoll is how often a starting server looks whether it is ready.
	readyPoll = 100 * time.Millisecond
	// startupGrace is how long a server that is told to stop while it starts may take to start first.
	startupGrace = 20 * time.Second
)

type dialer = utilnet.DialFunc

// Run serves until ctx is done, and then until the requests in flight have been answered. It calls ready once, when the
// server first is. If ctx is done before there is anything to serve, Run returns its error.
func Run(ctx context.Context, o CompletedOptions, ready func()) (err error) {
	if err := listen(ctx, o); err != nil {
		return err
	}
	o.profile.tune()
	var store *datastore.Datastore
	if o.usesSQL() {
		if store, err = datastore.Open(ctx, o.Datastore); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, store.Close()) }() // when nothing uses it any more
		facts := store.Facts()
		if err := errors.Join(registerMetrics(store.Metrics()), registerMetrics(facts)); err != nil {
			return err
		}
		defer legacyregistry.Registerer().Unregister(facts)
	}
	connections := newEtcdConnections()
	defer func() { err = errors.Join(err, connections.Close()) }()
	config, err := NewConfig(o, store, connections)
	if err != nil {
		return err
	}
	chain, err := CreateServerChain(config.Complete())
	if err != nil {
		return err
	}
	prepared, err := chain.PrepareRun()
	if err != nil {
		return fmt.Errorf("cannot prepare the server: %w", err)
	}
	// From here on only package openapi needs the definitions of all types, and makes its own when it does.
	config.core.controlPlane.Generic.OpenAPIV3Config.Definitions = nil
	started := make(chan struct{})
	serving, cancel := delayed(ctx, started, startupGrace)
	defer cancel()
	go reportReady(serving, config.core.client, func() {
		close(started)
		if ctx.Err() == nil {
			ready()
		}
		o.profile.settle(serving)
	})
	return prepared.Run(serving)
}

// delayed returns a context that ends when ctx has ended and the server has started, or has been given grace to. Upstream's
// hooks, when their context ends while they start something, take that for a failure and end the process on the spot.
func delayed(ctx context.Context, started <-chan struct{}, grace time.Duration) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		select {
		case <-started:
		case <-time.After(grace):
		}
		cancel()
	})
	return later, cancel
}

// listen takes the port before anything else, so that a port in use is found before a database is opened.
func listen(ctx context.Context, o CompletedOptions) error {
	secure := o.SecureServing
	if secure.Listener != nil || secure.PermitPortSharing || secure.PermitAddressSharing {
		return nil // upstream knows the socket options
	}
	address := net.JoinHostPort(secure.BindAddress.String(), strconv.Itoa(secure.BindPort))
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("cannot serve on %s, choose another address with --bind-address or --secure-port: %w", address, err)
	}
	secure.Listener = listener
	return nil
}

// CreateServerChain builds the servers, the last first: each hands on what it does not know. The aggregator takes every
// request, the core server has the built-in groups, the extension server the custom resources, and after it comes only
// the answer that there is no such thing.
func CreateServerChain(c CompletedConfig) (*aggregatorapiserver.APIAggregator, error) {
	notFound := notfoundhandler.New(c.core.controlPlane.Generic.Serializer, genericapifilters.NoMuxAndDiscoveryIncompleteKey)
	extensions, err := c.extensions.New(genericapiserver.NewEmptyDelegateWithCustomHandler(notFound))
	if err != nil {
		return nil, fmt.Errorf("cannot create the extension server: %w", err)
	}
	core, err := c.core.New(extensions.GenericAPIServer)
	if err != nil {
		return nil, fmt.Errorf("cannot create the core server: %w", err)
	}
	// The aggregator registers an APIService for each group of the servers behind it, and one for each custom resource.
	crds := apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
	aggregator, err := controlplaneapiserver.CreateAggregatorServer(c.aggregator, core.GenericAPIServer,
		extensions.Informers.Apiextensions().V1().CustomResourceDefinitions(),
		c.extensions.GenericConfig.MergedResourceConfig.ResourceEnabled(crds),
		registry.Priorities())
	if err != nil {
		return nil, fmt.Errorf("cannot create the aggregator: %w", err)
	}
	return aggregator, nil
}

// reportReady calls ready when the server says of itself that it is.
func reportReady(ctx context.Context, client clientset.Interface, ready func()) {
	err := wait.PollUntilContextCancel(ctx, readyPoll, true, func(ctx context.Context) (bool, error) {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil, nil
	})
	if err == nil {
		ready()
	}
}
