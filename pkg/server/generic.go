package server

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"
	extensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/healthz"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/kubernetes/pkg/kubeapiserver"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"

	"github.com/kubase/kubase/pkg/registry"
	"github.com/kubase/kubase/pkg/registry/datastore/v1alpha1"
	"github.com/kubase/kubase/pkg/server/datastore"
	"github.com/kubase/kubase/pkg/server/lifecycle"
)

// informerResync is how often shared informers deliver again what they hold.
const informerResync = 10 * time.Minute

// datastoreEndpoint is the address of the SQL datastore in the eyes of an etcd client. Nothing ever resolves it: the
// client's dialer goes to the datastore inside this process.
const datastoreEndpoint = "http://datastore.kubase.invalid:2379"

// genericConfig is what all servers of the chain have in common.
type genericConfig struct {
	*genericapiserver.Config
	client    clientset.Interface // talks to this server, as its most privileged user
	informers informers.SharedInformerFactory
	storage   *serverstorage.DefaultStorageFactory
	lifecycle *lifecycle.Controllers // nil if they are off
}

// newGenericConfig applies the options in the one order that works: each step says what it needs of those before it.
// The store is nil if the objects are kept in etcd.
func newGenericConfig(o CompletedOptions, store *datastore.Datastore, connections *etcdConnections) (*genericConfig, error) {
	codecs := legacyscheme.Codecs
	if utilfeature.DefaultFeatureGate.Enabled(genericfeatures.CBORServingAndStorage) {
		codecs = serializer.NewCodecFactory(legacyscheme.Scheme, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	c := &genericConfig{Config: genericapiserver.NewConfig(codecs)}
	c.Flagz = o.Flagz
	c.MergedResourceConfig = registry.Enabled()
	c.LongRunningFunc = filters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"),
		sets.NewString("attach", "exec", "proxy", "log", "portforward"),
	)
	c.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")

	for _, step := range []struct {
		what  string
		apply func(CompletedOptions) error
	}{
		{"generic", func(o CompletedOptions) error { return o.GenericServerRunOptions.ApplyTo(c.Config) }},
		{"secure serving", func(o CompletedOptions) error { return o.SecureServing.ApplyToConfig(c.Config) }},
		{"loopback client", c.applyLoopbackClient}, // needs the certificate of secure serving
		{"feature", func(o CompletedOptions) error { return o.Features.ApplyTo(c.Config, c.client, c.informers) }},
		{"API enablement", func(o CompletedOptions) error {
			return o.APIEnablement.ApplyTo(c.Config, c.MergedResourceConfig, legacyscheme.Scheme)
		}},
		{"egress selector", func(o CompletedOptions) error { return o.EgressSelector.ApplyTo(c.Config) }},
		{"tracing", func(o CompletedOptions) error { return o.Traces.ApplyTo(c.EgressSelector, c.Config) }},
		{"OpenAPI", c.applyOpenAPI},
		{"storage", func(o CompletedOptions) error { return c.applyStorage(o, store, connections) }}, // needs egress, tracing, enablement
		{"authentication", c.applyAuthentication},                                                    // needs OpenAPI and egress
		{"authorization", c.applyAuthorization},
		{"lifecycle", func(o CompletedOptions) error { return c.applyLifecycle(o, store) }}, // needs the loopback client
		{"audit", func(o CompletedOptions) error { return o.Audit.ApplyTo(c.Config) }},
	} {
		if err := step.apply(o); err != nil {
			return nil, fmt.Errorf("cannot apply the %s options: %w", step.what, err)
		}
	}
	return c, nil
}

func (c *genericConfig) applyLoopbackClient(o CompletedOptions) error {
	// This server's own client knows that both ends speak protobuf, and that the way is short.
	c.LoopbackClientConfig.ContentType = runtime.ContentTypeProtobuf
	c.LoopbackClientConfig.DisableCompression = true
	client, err := clientset.NewForConfig(c.LoopbackClientConfig)
	if err != nil {
		return err
	}
	c.client = client

	name := o.InformerName
	if name == nil {
		if name, err = cache.NewInformerName("kube-apiserver"); err != nil {
			return err
		}
	}
	c.informers = informers.NewSharedInformerFactoryWithOptions(client, informerResync,
		informers.WithTransform(dropManagedFields), informers.WithInformerName(name))
	return nil
}

// dropManagedFields saves memory: nothing inside the server reads the managed fields of a cached object.
func dropManagedFields(obj any) (any, error) {
	if object, err := meta.Accessor(obj); err == nil && object.GetManagedFields() != nil {
		object.SetManagedFields(nil)
	}
	return obj, nil
}

func (c *genericConfig) applyOpenAPI(CompletedOptions) error {
	definitions := openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		all := generatedopenapi.GetOpenAPIDefinitions(ref)
		maps.Copy(all, v1alpha1.GetOpenAPIDefinitions(ref))
		return all
	})
	namer := apiopenapi.NewDefinitionNamer(legacyscheme.Scheme, extensionsapiserver.Scheme, aggregatorscheme.Scheme)
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	c.OpenAPIConfig.Info.Title = "Kubernetes"
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	c.OpenAPIV3Config.Info.Title = "Kubernetes"
	// Left to the builders, the first of them keeps all its definitions alive in a closure.
	c.OpenAPIConfig.GetOperationIDAndTagsFromRoute = operationIDAndTags
	c.OpenAPIV3Config.GetOperationIDAndTagsFromRoute = operationIDAndTags
	return nil
}

func operationIDAndTags(r common.Route) (id string, tags []string, err error) {
	route, ok := r.(*restfuladapter.RouteAdapter)
	if !ok {
		return "", nil, fmt.Errorf("the route %s %s is not of a go-restful web service", r.Method(), r.Path())
	}
	return apiopenapi.GetOperationIDAndTags(route.Route)
}

// applyStorage makes the etcd options, which every server of the chain copies, talk to the right place.
func (c *genericConfig) applyStorage(o CompletedOptions, store *datastore.Datastore, connections *etcdConnections) error {
	transport := &o.Etcd.StorageConfig.Transport
	transport.TracerProvider = c.TracerProvider
	switch {
	case store != nil:
		var tracers trace.TracerProvider // without them a call costs less
		if o.Traces.ConfigFile != "" {
			tracers = c.TracerProvider
		}
		store.ServeInProcess(tracers)
		// Only etcd clients ask this lookup. The user's egress selector goes on deciding about everything else.
		transport.EgressLookup = func(egressselector.NetworkContext) (dialer, error) { return store.DialContext, nil }
		check := healthz.NamedCheck("datastore", func(r *http.Request) error { return store.Check(r.Context()) })
		// Not livez: a restart of this process does not bring a database back.
		c.AddHealthzChecks(check)
		c.AddReadyzChecks(check)
	case c.EgressSelector != nil:
		transport.EgressLookup = c.EgressSelector.Lookup
	}

	factory := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(c.EffectiveVersion)
	factory.APIResourceConfig = c.MergedResourceConfig
	factory.DefaultResourceEncoding.SetEffectiveVersion(c.EffectiveVersion)
	storage, err := factory.Complete(o.Etcd).New()
	if err != nil {
		return err
	}
	storage.StorageConfig.StorageObjectCountTracker = c.StorageObjectCountTracker
	c.storage = storage
	// Before anything else opens one of its own.
	if _, err := connections.get(o.Etcd.StorageConfig); err != nil {
		return err
	}
	if err := o.Etcd.ApplyWithStorageFactoryTo(storage, c.Config); err != nil {
		return err
	}
	c.RESTOptionsGetter, err = connections.share(c.RESTOptionsGetter, o.Etcd)
	return err
}

func (c *genericConfig) applyAuthentication(o CompletedOptions) error {
	err := o.Authentication.ApplyTo(c.background(), &c.Authentication, c.SecureServing, c.EgressSelector,
		c.OpenAPIConfig, c.OpenAPIV3Config, c.client, c.informers, c.APIServerID)
	if err != nil || !o.anonymousHealthOnly {
		return err
	}
	var paths []apiserver.AnonymousAuthCondition
	for _, path := range []string{"/healthz", "/livez", "/readyz", "/version"} {
		paths = append(paths, apiserver.AnonymousAuthCondition{Path: path})
	}
	c.Authentication.Authenticator = union.NewFailOnError(c.Authentication.Authenticator, anonymous.NewAuthenticator(paths))
	return nil
}

func (c *genericConfig) applyAuthorization(o CompletedOptions) error {
	authorizer, rules, usesRBAC, err := controlplaneapiserver.BuildAuthorizer(c.background(), o.CompletedOptions.CompletedOptions,
		c.EgressSelector, c.APIServerID, c.informers)
	if err != nil {
		return err
	}
	c.Authorization.Authorizer = authorizer
	c.RuleResolver = rules
	if !usesRBAC {
		c.DisabledPostStartHooks.Insert(rbacrest.PostStartHookName)
	}
	return nil
}

func (c *genericConfig) applyLifecycle(o CompletedOptions, store *datastore.Datastore) error {
	if o.lifecycle == lifecycle.Off {
		return nil
	}
	controllers, err := lifecycle.New(lifecycle.Config{
		Mode: o.lifecycle, Owner: store != nil && store.Status().Backend == backendSQLite, Client: c.LoopbackClientConfig, Files: o.lifecycleFiles,
	})
	if err != nil {
		return err
	}
	c.lifecycle = controllers
	c.AddHealthzChecks(controllers) // the API is ready and alive without them
	return nil
}

// background lives until the last request has been answered.
func (c *genericConfig) background() context.Context {
	return wait.ContextForChannel(c.DrainedNotify())
}
