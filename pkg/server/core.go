package server

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/proxy"
	clientset "k8s.io/client-go/kubernetes"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/capabilities"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	"k8s.io/kubernetes/pkg/controlplane/controller/defaultservicecidr"
	"k8s.io/kubernetes/pkg/controlplane/controller/kubernetesservice"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	"k8s.io/kubernetes/pkg/features"
	kubeapiserveradmission "k8s.io/kubernetes/pkg/kubeapiserver/admission"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"

	"github.com/kubase/kubase/pkg/registry"
	"github.com/kubase/kubase/pkg/server/lifecycle"
	"github.com/kubase/kubase/pkg/server/openapi"
)

const (
	// servicePort is the port of the service "kubernetes".
	servicePort = 443

	// An endpoint of the service "kubernetes" that its server does not renew for endpointTTL goes away.
	endpointInterval = 10 * time.Second
	endpointTTL      = 15 * time.Second

	// serviceRepairInterval is how often cluster IPs and node ports that leaked are found and given back.
	serviceRepairInterval = 3 * time.Minute
)

// coreConfig is the configuration of the server of the built-in groups.
type coreConfig struct {
	controlPlane controlplaneapiserver.Config
	coreExtra
}

// coreExtra is what the core server has beyond a bare control plane.
type coreExtra struct {
	options         CompletedOptions
	client          clientset.Interface
	kubelet         kubeletclient.KubeletClientConfig
	serviceResolver aggregatorapiserver.ServiceResolver
	initializers    []admission.PluginInitializer
	lifecycle       *lifecycle.Controllers // nil if they are off
	datastores      *datastores
}

func newCoreConfig(o CompletedOptions, generic *genericConfig) (*coreConfig, error) {
	capabilities.Setup(o.AllowPrivileged, o.MaxConnectionBytesPerSec)

	endpointSlices, err := proxy.NewEndpointSliceIndexerGetter(generic.informers.Discovery().V1().EndpointSlices())
	if err != nil {
		return nil, fmt.Errorf("cannot index endpoint slices: %w", err)
	}
	resolver, err := newServiceResolver(o.EnableAggregatorRouting, generic, endpointSlices)
	if err != nil {
		return nil, err
	}
	initializers, err := (&kubeapiserveradmission.Config{}).New()
	if err != nil {
		return nil, fmt.Errorf("cannot prepare admission: %w", err)
	}
	config, genericInitializers, err := controlplaneapiserver.CreateConfig(o.CompletedOptions.CompletedOptions,
		generic.Config, generic.informers, endpointSlices, generic.storage, resolver, initializers)
	if err != nil {
		return nil, fmt.Errorf("cannot configure the core server: %w", err)
	}
	core := &coreConfig{*config, coreExtra{
		options:         o,
		client:          generic.client,
		kubelet:         o.KubeletConfig,
		serviceResolver: resolver,
		initializers:    genericInitializers,
		lifecycle:       generic.lifecycle,
	}}
	if egress := generic.EgressSelector; egress != nil {
		// Kubelets, and what the proxy subresources talk to, are on the cluster's network.
		core.kubelet.Lookup = egress.Lookup
		dial, err := egress.Lookup(egressselector.Cluster.AsNetworkContext())
		if err != nil {
			return nil, fmt.Errorf("cannot find the egress to the cluster: %w", err)
		}
		core.controlPlane.ProxyTransport = core.controlPlane.ProxyTransport.Clone()
		core.controlPlane.ProxyTransport.DialContext = dial
	}
	return core, nil
}

// newServiceResolver finds the URLs of services for the aggregator and for webhooks; kubernetes.default is this server.
func newServiceResolver(toEndpoints bool, generic *genericConfig, endpointSlices proxy.EndpointSliceGetter) (aggregatorapiserver.ServiceResolver, error) {
	services := generic.informers.Core().V1().Services().Lister()
	resolver := aggregatorapiserver.NewClusterIPServiceResolver(services)
	if toEndpoints {
		resolver = aggregatorapiserver.NewEndpointServiceResolver(services, endpointSlices)
	}
	self, err := url.Parse(generic.LoopbackClientConfig.Host)
	if err != nil {
		return nil, fmt.Errorf("cannot parse the address of this server: %w", err)
	}
	return aggregatorapiserver.NewLoopbackServiceResolver(resolver, self), nil
}

// completedCoreConfig can only be made by Complete.
type completedCoreConfig struct {
	controlPlane controlplaneapiserver.CompletedConfig
	*coreExtra
}

func (c *coreConfig) Complete() completedCoreConfig {
	c.controlPlane.Generic.SkipOpenAPIInstallation = true // package openapi serves this server's
	completed := c.controlPlane.Complete()
	// A client inside the cluster is told to come back through the service.
	completed.Generic.DiscoveryAddresses = discovery.DefaultAddresses{
		DefaultAddress: completed.Generic.ExternalAddress,
		CIDRRules: []discovery.CIDRRule{{
			IPRange: c.options.PrimaryServiceClusterIPRange,
			Address: net.JoinHostPort(c.options.APIServerServiceIP.String(), strconv.Itoa(servicePort)),
		}},
	}
	return completedCoreConfig{completed, &c.coreExtra}
}

// New builds the core server: the control plane that every Kubernetes API server has, the API groups of the registry, and
// what keeps the service "kubernetes" and its range in place.
func (c completedCoreConfig) New(delegate genericapiserver.DelegationTarget) (*controlplaneapiserver.Server, error) {
	server, err := c.controlPlane.New(controlplaneapiserver.KubeAPIServer, delegate)
	if err != nil {
		return nil, err
	}
	providers, err := registry.Providers(registry.Config{
		ControlPlane: c.controlPlane,
		Client:       c.client,
		Proxy:        corerest.ProxyConfig{Transport: c.controlPlane.ProxyTransport, KubeletClientConfig: c.kubelet},
		Services: corerest.ServicesConfig{
			ClusterIPRange:          c.options.PrimaryServiceClusterIPRange,
			SecondaryClusterIPRange: c.options.SecondaryServiceClusterIPRange,
			NodePortRange:           c.options.ServiceNodePortRange,
			IPRepairInterval:        serviceRepairInterval,
		},
		Datastores: c.datastores.list,
	})
	if err != nil {
		return nil, err
	}
	if err := server.InstallAPIs(providers...); err != nil {
		return nil, err
	}
	openapi.Install(server.GenericAPIServer, c.controlPlane.Generic.OpenAPIConfig, c.controlPlane.Generic.OpenAPIV3Config)
	if err := c.addKubernetesService(server.GenericAPIServer); err != nil {
		return nil, err
	}
	if err := c.addLifecycle(server.GenericAPIServer); err != nil {
		return nil, err
	}
	if err := c.datastores.addReaderRole(server.GenericAPIServer); err != nil {
		return nil, err
	}
	return server, c.addServiceCIDR(server.GenericAPIServer)
}

// addLifecycle runs the lifecycle controllers from when the server serves until it is told to stop. It goes on serving
// until they have ended, so that they can give back their lease.
func (c completedCoreConfig) addLifecycle(server *genericapiserver.GenericAPIServer) error {
	if c.lifecycle == nil {
		return nil
	}
	if err := server.AddPostStartHook("start-"+lifecycle.Name, func(ctx genericapiserver.PostStartHookContext) error {
		return c.lifecycle.Start(ctx)
	}); err != nil {
		return err
	}
	return server.AddPreShutdownHook("stop-"+lifecycle.Name, c.lifecycle.Stop)
}

// addKubernetesService keeps the service "kubernetes", and its endpoints if this server has an address to publish.
func (c completedCoreConfig) addKubernetesService(server *genericapiserver.GenericAPIServer) error {
	reconciler, err := c.newEndpointReconciler()
	if err != nil {
		return err
	}
	address := c.controlPlane.Generic.PublicAddress
	if err := reconciler.ValidateIP(address); err != nil {
		return fmt.Errorf("cannot publish %s as endpoint of the service \"kubernetes\", set --advertise-address or --endpoint-reconciler-type=%s: %w",
			address, reconcilers.NoneEndpointReconcilerType, err)
	}
	_, port, err := c.controlPlane.Generic.SecureServing.HostPort()
	if err != nil {
		return fmt.Errorf("cannot tell the port of this server: %w", err)
	}
	controller := kubernetesservice.New(kubernetesservice.Config{
		PublicIP:                  address,
		EndpointReconciler:        reconciler,
		EndpointInterval:          endpointInterval,
		ServiceIP:                 c.options.APIServerServiceIP,
		ServicePort:               servicePort,
		PublicServicePort:         port,
		KubernetesServiceNodePort: c.options.KubernetesServiceNodePort,
	}, c.client, c.controlPlane.VersionedInformers.Core().V1().Services())
	if err := server.AddPostStartHook("bootstrap-controller", func(ctx genericapiserver.PostStartHookContext) error {
		controller.Start(ctx.Done())
		return nil
	}); err != nil {
		return err
	}
	return server.AddPreShutdownHook("stop-kubernetes-service-controller", func() error {
		controller.Stop()
		return nil
	})
}

func (c completedCoreConfig) newEndpointReconciler() (reconcilers.EndpointReconciler, error) {
	adapter := reconcilers.NewEndpointsAdapter(c.client.CoreV1(), c.client.DiscoveryV1())
	switch kind := reconcilers.Type(c.options.EndpointReconcilerType); kind {
	case reconcilers.NoneEndpointReconcilerType:
		return reconcilers.NewNoneEndpointReconciler(), nil
	case reconcilers.MasterCountReconcilerType:
		return reconcilers.NewMasterCountEndpointReconciler(c.options.MasterCount, adapter), nil
	case reconcilers.LeaseEndpointReconcilerType, "":
		config, err := c.controlPlane.StorageFactory.NewConfig(api.Resource("apiServerIPInfo"), &api.Endpoints{})
		if err != nil {
			return nil, fmt.Errorf("cannot configure the storage of endpoint leases: %w", err)
		}
		leases, err := reconcilers.NewLeases(config, "/masterleases/", endpointTTL)
		if err != nil {
			return nil, fmt.Errorf("cannot open the storage of endpoint leases: %w", err)
		}
		return reconcilers.NewLeaseEndpointReconciler(adapter, leases), nil
	default:
		return nil, fmt.Errorf("--endpoint-reconciler-type %q is unknown, it can be one of %v", kind, reconcilers.AllTypes.Names())
	}
}

// addServiceCIDR publishes the service range as an object. Until it exists no service gets an address, so the server is
// not ready before.
func (c completedCoreConfig) addServiceCIDR(server *genericapiserver.GenericAPIServer) error {
	if !utilfeature.DefaultFeatureGate.Enabled(features.MultiCIDRServiceAllocator) {
		return nil
	}
	return server.AddPostStartHook("start-kubernetes-service-cidr-controller", func(ctx genericapiserver.PostStartHookContext) error {
		defaultservicecidr.NewController(
			c.options.PrimaryServiceClusterIPRange, c.options.SecondaryServiceClusterIPRange, c.client,
		).Start(ctx)
		return nil
	})
}
