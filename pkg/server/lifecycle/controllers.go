package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/healthz"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
)

// controllers are kube-controller-manager's own, by its own names for them, except for those of ours, see own.go.
var controllers = []string{
	names.NamespaceController,
	names.GarbageCollectorController,
	names.ServiceAccountController,
	names.LegacyServiceAccountTokenCleanerController,
	names.RootCACertificatePublisherController,
	names.KubeAPIServerClusterTrustBundlePublisherController,
	names.ResourceQuotaController,
	names.ClusterRoleAggregationController,
	names.TTLAfterFinishedController,
	names.CertificateSigningRequestApprovingController,
	names.CertificateSigningRequestSigningController,
	names.CertificateSigningRequestCleanerController,
	names.PodCertificateRequestCleanerController,
	names.BootstrapSignerController,
	names.TokenCleanerController,
	names.StorageVersionGarbageCollectorController,
}

const (
	// mapperReset is how often the garbage collector learns of kinds that came and went.
	mapperReset = 30 * time.Second
	// workers is how many objects a controller with much to do works on at once.
	workers = 5
	// stopTimeout is how long the controllers may take to end.
	stopTimeout = 5 * time.Second
)

// run runs the controllers until ctx ends. It returns an error if they cannot start, or do not end in time.
func run(ctx context.Context, config Config) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := newContext(ctx, config)
	if err != nil {
		return err
	}
	all, known := map[string]*controllermanager.ControllerDescriptor{}, controllermanager.NewControllerDescriptors()
	for _, name := range controllers {
		all[name] = known[name]
	}
	running, err := controllermanager.BuildControllers(ctx, c, all, nil, noChecks{})
	if err != nil {
		return err
	}
	for _, build := range []func(context.Context, controllermanager.ControllerContext, Config) (controllermanager.Controller, error){
		newTokens, newPolicyStatus,
	} {
		controller, err := build(ctx, c, config)
		if err != nil {
			return err
		}
		if controller != nil {
			running = append(running, controller)
		}
	}
	c.InformerFactory.Start(ctx.Done())
	defer c.InformerFactory.Shutdown()
	c.ObjectOrMetadataInformerFactory.Start(ctx.Done())
	close(c.InformersStarted)
	if !controllermanager.RunControllers(ctx, c, running, 0, stopTimeout) {
		return errors.New("some controllers did not end in time")
	}
	return nil
}

// newContext returns what the controllers share. Little of it can be used twice, so every run gets its own.
func newContext(ctx context.Context, config Config) (controllermanager.ControllerContext, error) {
	var none controllermanager.ControllerContext
	settings, err := options.NewDefaultComponentConfig()
	if err != nil {
		return none, fmt.Errorf("cannot configure the controllers: %w", err)
	}
	settings.Generic.Controllers = controllers
	settings.Generic.ControllerStartInterval.Duration = 0
	// Upstream's numbers are for large clusters; every worker is a goroutine that waits.
	settings.GarbageCollectorController.ConcurrentGCSyncs = workers
	settings.NamespaceController.ConcurrentNamespaceSyncs = workers
	settings.SAController.RootCAFile = config.Files.RootCA
	settings.CSRSigningController.ClusterSigningCertFile = config.Files.SigningCert
	settings.CSRSigningController.ClusterSigningKeyFile = config.Files.SigningKey

	accounts := accountClients{config.Client}
	client, err := accounts.privileged("shared-informers")
	if err != nil {
		return none, err
	}
	metadataClient, err := metadata.NewForConfig(config.Client)
	if err != nil {
		return none, err
	}
	resync := func() time.Duration { return wait.Jitter(settings.Generic.MinResyncPeriod.Duration, 1) }
	typed := informers.NewSharedInformerFactoryWithOptions(client, resync(), informers.WithTransform(dropManagedFields))
	metadataOnly := metadatainformer.NewSharedInformerFactoryWithOptions(metadataClient, resync(), metadatainformer.WithTransform(dropManagedFields))
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(client.Discovery()))
	go wait.UntilWithContext(ctx, func(context.Context) { mapper.Reset() }, mapperReset)

	c := controllermanager.ControllerContext{
		ClientBuilder:                   accounts,
		InformerFactory:                 typed,
		ObjectOrMetadataInformerFactory: sharedInformers{typed, metadataOnly},
		ComponentConfig:                 settings,
		RESTMapper:                      mapper,
		InformersStarted:                make(chan struct{}),
		ResyncPeriod:                    resync,
		ControllerManagerMetrics:        controllersmetrics.NewControllerManagerMetrics(Name),
	}
	c.GraphBuilder = garbagecollector.NewDependencyGraphBuilder(ctx, metadataClient, mapper,
		garbagecollector.DefaultIgnoredResources(), c.ObjectOrMetadataInformerFactory, c.InformersStarted)
	return c, nil
}

// sharedInformers has one informer for each resource, for the controllers that look at all resources. They need no more
// than metadata, so whole objects are kept only of resources that another controller reads.
type sharedInformers struct {
	typed        informers.SharedInformerFactory
	metadataOnly metadatainformer.SharedInformerFactory
}

// wholeObjects are the resources that some controller reads.
var wholeObjects = map[schema.GroupResource]bool{
	{Resource: "configmaps"}:             true,
	{Resource: "namespaces"}:             true,
	{Resource: "persistentvolumeclaims"}: true, // quota counts what they ask for, and so below
	{Resource: "pods"}:                   true,
	{Resource: "resourcequotas"}:         true,
	{Resource: "secrets"}:                true,
	{Resource: "serviceaccounts"}:        true,
	{Resource: "services"}:               true,
	{Group: "batch", Resource: "jobs"}:   true,
	{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}:           true,
	{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}:                   true,
	{Group: "resource.k8s.io", Resource: "resourceclaims"}:                           true,
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"}: true,
}

func (s sharedInformers) ForResource(resource schema.GroupVersionResource) (informers.GenericInformer, error) {
	if wholeObjects[resource.GroupResource()] {
		return s.typed.ForResource(resource)
	}
	return s.metadataOnly.ForResource(resource), nil
}

func (s sharedInformers) Start(stop <-chan struct{}) {
	s.typed.Start(stop)
	s.metadataOnly.Start(stop)
}

// dropManagedFields saves memory: no controller here reads them.
func dropManagedFields(obj any) (any, error) {
	if object, err := meta.Accessor(obj); err == nil && object.GetManagedFields() != nil {
		object.SetManagedFields(nil)
	}
	return obj, nil
}

// noChecks drops the health checks of single controllers: all of them always pass.
type noChecks struct{}

func (noChecks) AddHealthChecker(...healthz.HealthChecker) {}
