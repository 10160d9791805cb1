package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	grpcprometheus "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericfeatures "k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server/egressselector"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/tracing"
)

// Timings of an etcd connection. Keepalives find a dead server fast; the handshake may take long on a busy small machine.
const (
	etcdDialTimeout      = 20 * time.Second
	etcdKeepaliveTime    = 30 * time.Second
	etcdKeepaliveTimeout = 10 * time.Second
)

// etcdConnections holds one connection for each set of etcd servers, and one compactor on it, for all resources and
// custom resources. Upstream's factory opens a connection for every one of them: a socket, buffers and goroutines on both ends.
type etcdConnections struct {
	mu          sync.Mutex // guards connections; held while one is opened, so that two callers share it
	connections map[string]*etcdConnection
	order       []string // of their keys, as they were opened
}

type etcdConnection struct {
	client    *clientv3.Client
	compactor etcd3.Compactor // nil if compaction is off
	stop      func()
}

func newEtcdConnections() *etcdConnections {
	return &etcdConnections{connections: map[string]*etcdConnection{}}
}

// get returns the connection to the servers of config, and opens it for the first who asks.
func (e *etcdConnections) get(config storagebackend.Config) (*etcdConnection, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	servers := slices.Clone(config.Transport.ServerList)
	slices.Sort(servers)
	key := strings.Join(servers, ",")
	if c, ok := e.connections[key]; ok {
		return c, nil
	}
	client, err := dialEtcd(config.Transport)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to etcd at %s: %w", strings.Join(config.Transport.ServerList, ", "), err)
	}
	c := &etcdConnection{client: client, stop: func() {}}
	if config.CompactionInterval > 0 {
		// What upstream's factory still opens itself, such as the allocators of addresses, finds this compactor and starts
		// no other.
		compactor := etcd3.StartCompactorPerEndpoint(client, config.CompactionInterval)
		c.compactor, c.stop = compactor, compactor.Stop
	}
	// The stores ask this of their own clients, but those know no endpoints.
	etcdfeature.DefaultFeatureSupportChecker.CheckClient(client.Ctx(), client, storage.RequestWatchProgress)
	e.connections[key] = c
	e.order = append(e.order, key)
	return c, nil
}

// clients returns the clients of all connections, the one of most objects first.
func (e *etcdConnections) clients() []*clientv3.Client {
	e.mu.Lock()
	defer e.mu.Unlock()
	var clients []*clientv3.Client
	for _, key := range e.order {
		clients = append(clients, e.connections[key].client)
	}
	return clients
}

// Close closes all connections, when nothing uses them any more.
func (e *etcdConnections) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	e.order = nil
	for key, c := range e.connections {
		c.stop()
		if err := c.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
			errs = append(errs, err)
		}
		delete(e.connections, key)
	}
	return errors.Join(errs...)
}

// dialEtcd returns a client whose connection is up.
func dialEtcd(config storagebackend.TransportConfig) (*clientv3.Client, error) {
	clientConfig := clientv3.Config{
		Endpoints:            config.ServerList,
		DialTimeout:          etcdDialTimeout,
		DialKeepAliveTime:    etcdKeepaliveTime,
		DialKeepAliveTimeout: etcdKeepaliveTimeout,
		Logger:               zap.NewNop(), // what it would say reaches us as an error, too
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(grpcMetrics().UnaryClientInterceptor()),
			grpc.WithChainStreamInterceptor(grpcMetrics().StreamClientInterceptor()),
			grpc.WithStatsHandler(otelgrpc.NewClientHandler(
				otelgrpc.WithMessageEvents(otelgrpc.ReceivedEvents, otelgrpc.SentEvents),
				otelgrpc.WithPropagators(tracing.Propagators()),
				otelgrpc.WithTracerProvider(config.TracerProvider),
			)),
		},
	}
	if config.CertFile != "" || config.KeyFile != "" || config.TrustedCAFile != "" {
		info := transport.TLSInfo{CertFile: config.CertFile, KeyFile: config.KeyFile, TrustedCAFile: config.TrustedCAFile}
		tls, err := info.ClientConfig()
		if err != nil {
			return nil, err
		}
		clientConfig.TLS = tls
	}
	if config.EgressLookup != nil {
		dial, err := config.EgressLookup(egressselector.Etcd.AsNetworkContext())
		if err != nil {
			return nil, err
		}
		if dial != nil { // the user's selector may have nothing to say about etcd
			clientConfig.DialOptions = append(clientConfig.DialOptions,
				grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }))
		}
	}
	client, err := clientv3.New(clientConfig)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(client.Ctx(), etcdDialTimeout)
	defer cancel()
	connection := client.ActiveConnection()
	for state := connection.GetState(); state != connectivity.Ready; state = connection.GetState() {
		if state == connectivity.Idle {
			connection.Connect()
		}
		if !connection.WaitForStateChange(ctx, state) {
			return nil, errors.Join(fmt.Errorf("no answer within %s", etcdDialTimeout), client.Close())
		}
	}
	return client, nil
}

// grpcMetrics returns the collector that upstream's factory registered: two of one name cannot be.
var grpcMetrics = sync.OnceValue(func() *grpcprometheus.ClientMetrics {
	ours := grpcprometheus.NewClientMetrics()
	var registered prometheus.AlreadyRegisteredError
	if err := legacyregistry.Registerer().Register(ours); errors.As(err, &registered) {
		if theirs, ok := registered.ExistingCollector.(*grpcprometheus.ClientMetrics); ok {
			return theirs
		}
	}
	return ours
})

// registerMetrics adds to what /metrics shows; again does nothing.
func registerMetrics(c prometheus.Collector) error {
	err := legacyregistry.Registerer().Register(c)
	var registered prometheus.AlreadyRegisteredError
	if errors.As(err, &registered) && registered.ExistingCollector == c {
		return nil
	}
	return err
}

// newClient returns a client of its own for one resource. Only the connection is shared: watches that share a watcher share a
// stream, and on one stream the slowest watch holds up the progress notifications of all others.
func (c *etcdConnection) newClient() *kubernetes.Client {
	client := clientv3.NewCtxClient(c.client.Ctx())
	client.KV = etcd3.NewETCDLatencyTracker(c.client.KV)
	client.Watcher = clientv3.NewWatcher(c.client)
	client.Lease = clientv3.NewLease(c.client)
	client.Cluster = c.client.Cluster
	client.Maintenance = c.client.Maintenance
	k := &kubernetes.Client{Client: client}
	k.Kubernetes = k
	return k
}

// newStorage is upstream's etcd3 storage of one resource, on the shared connection.
func (e *etcdConnections) newStorage(config *storagebackend.ConfigForResource, resourcePrefix string, newFunc, newListFunc func() runtime.Object) (storage.Interface, factory.DestroyFunc, error) {
	connection, err := e.get(config.Config)
	if err != nil {
		return nil, nil, err
	}
	transformer := config.Transformer
	if transformer == nil {
		transformer = identity.NewEncryptCheckTransformer()
	}
	versioner := storage.APIObjectVersioner{}
	decoder := etcd3.NewDefaultDecoder(config.Codec, versioner)
	deletesCorrupt := utilfeature.DefaultFeatureGate.Enabled(genericfeatures.AllowUnsafeMalformedObjectDeletion)
	if deletesCorrupt {
		transformer = etcd3.WithCorruptObjErrorHandlingTransformer(transformer)
		decoder = etcd3.WithCorruptObjErrorHandlingDecoder(decoder)
	}
	client := connection.newClient()
	store, err := etcd3.New(client, connection.compactor, config.Codec, newFunc, newListFunc, config.Prefix, resourcePrefix,
		config.GroupResource, transformer, config.LeaseManagerConfig, decoder, versioner)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("cannot open the storage of %s: %w", config.GroupResource, err), client.Close())
	}
	destroy := sync.OnceFunc(func() {
		store.Close()
		_ = client.Close() // it says that its context is cancelled, which is what it just did
	})
	if deletesCorrupt {
		return etcd3.NewStoreWithUnsafeCorruptObjectDeletion(store, config.GroupResource), destroy, nil
	}
	return store, destroy, nil
}

// share makes the storage that getter's resources have use the shared connections.
func (e *etcdConnections) share(getter generic.RESTOptionsGetter, o *genericoptions.EtcdOptions) (generic.RESTOptionsGetter, error) {
	sizes, err := genericoptions.ParseWatchCacheSizes(o.WatchCacheSizes)
	if err != nil {
		return nil, err
	}
	return &sharedStorage{getter, e, o.EnableWatchCache, sizes}, nil
}

// sharedStorage is a RESTOptionsGetter that says the same as the one it wraps, except for how storage is made.
type sharedStorage struct {
	generic.RESTOptionsGetter
	connections *etcdConnections
	watchCache  bool
	cacheSizes  map[schema.GroupResource]int // zero turns the cache of a resource off
}

func (s *sharedStorage) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	o, err := s.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return o, err
	}
	size, sized := s.cacheSizes[resource]
	o.Decorator = s.connections.uncached
	if s.watchCache && (!sized || size > 0) {
		o.Decorator = s.connections.cached
	}
	return o, nil
}

var (
	_ generic.StorageDecorator = (*etcdConnections)(nil).uncached
	_ generic.StorageDecorator = (*etcdConnections)(nil).cached
)

func (e *etcdConnections) uncached(config *storagebackend.ConfigForResource, resourcePrefix string, _ func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object, _ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	return e.newStorage(config, resourcePrefix, newFunc, newListFunc)
}

func (e *etcdConnections) cached(config *storagebackend.ConfigForResource, resourcePrefix string, keyFunc func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object, getAttrs storage.AttrFunc, indexerFuncs storage.IndexerFuncs, indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	store, destroy, err := e.newStorage(config, resourcePrefix, newFunc, newListFunc)
	if err != nil {
		return nil, nil, err
	}
	c, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage:             store,
		Versioner:           storage.APIObjectVersioner{},
		GroupResource:       config.GroupResource,
		EventsHistoryWindow: config.EventsHistoryWindow,
		ResourcePrefix:      resourcePrefix,
		KeyFunc:             keyFunc,
		NewFunc:             newFunc,
		NewListFunc:         newListFunc,
		GetAttrsFunc:        getAttrs,
		IndexerFuncs:        indexerFuncs,
		Indexers:            indexers,
		Codec:               config.Codec,
	})
	if err != nil {
		destroy()
		return nil, nil, fmt.Errorf("cannot start the watch cache of %s: %w", config.GroupResource, err)
	}
	delegator := cacher.NewCacheDelegator(c, store)
	return delegator, sync.OnceFunc(func() {
		delegator.Stop()
		c.Stop()
		destroy()
	}), nil
}
