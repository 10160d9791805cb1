// Package lifecycle runs, inside the API server, the controllers without which an API server is of little use: those that
// delete what is in a deleted namespace and what has lost its owner, and that make what a new namespace, a quota, a cluster
// role or a joining kubelet needs. Everything that runs workloads stays with kube-controller-manager.
package lifecycle

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
)

// Mode says when the controllers run.
type Mode string

const (
	// Auto runs them unless a kube-controller-manager, which has them all, holds its lease.
	Auto Mode = "auto"
	On   Mode = "on"
	Off  Mode = "off"
)

// Name is the name of the lease that the servers of one cluster elect by, and of the health check.
const Name = "kubase-lifecycle-controllers"

// election says how the servers of a cluster elect one. When the holder of the lease dies without giving it back, another server takes
// over within the lease's duration and a little more than the retry period, in which the holder renews it once.
type election struct {
	identity                                  string
	leaseDuration, renewDeadline, retryPeriod time.Duration
}

// among is the election where any server may be elected.
func among() (election, error) {
	host, err := os.Hostname()
	if err != nil {
		return election{}, err
	}
	return election{
		identity:      host + "_" + string(uuid.NewUUID()),
		leaseDuration: 20 * time.Second, renewDeadline: 15 * time.Second, retryPeriod: 5 * time.Second,
	}, nil
}

// owner is the election of the server that has the database to itself. Who else could be elected can do nothing without it, so it
// renews the lease seldom; and it knows the lease as its own when it starts again, so it waits for nobody.
var owner = election{
	identity:      "owner-of-the-database",
	leaseDuration: time.Minute, renewDeadline: 45 * time.Second, retryPeriod: 20 * time.Second,
}

// retryPeriod is how long controllers that could not start wait before they try again.
const retryPeriod = 5 * time.Second

// readyPoll is how often a starting server is asked whether it is ready for the controllers.
const readyPoll = 100 * time.Millisecond

// runningGauge tells whether the controllers run in this process.
var runningGauge = metrics.NewGauge(&metrics.GaugeOpts{
	Name:           "kubase_lifecycle_controllers_running",
	Help:           "1 while this server runs the lifecycle controllers, else 0.",
	StabilityLevel: metrics.ALPHA,
})

func init() { legacyregistry.MustRegister(runningGauge) }

// Config is what the controllers need.
type Config struct {
	Mode   Mode
	Owner  bool         // no other process can open the database
	Client *rest.Config // of the API server in this process, as its most privileged user
	Files  Files
}

// Files names keys and certificates. A controller whose files are not there does not run.
type Files struct {
	RootCA            string // what pods verify the API server with
	ServiceAccountKey string // signs service account tokens that are kept in secrets
	SigningCert       string // signs the certificates of kubelets and other clients
	SigningKey        string
}

// Controllers runs the controllers on the one server that the servers of a cluster elect.
type Controllers struct {
	config   Config
	client   clientset.Interface
	election election
	watchdog *leaderelection.HealthzAdaptor

	running sync.WaitGroup // the election
	leading sync.Mutex     // held while this server leads, so that it does not begin anew before it has ended

	mu      sync.Mutex // guards what follows
	stopped bool
	cancel  context.CancelFunc
	err     error // why the controllers do not run though they should
}

// New prepares the controllers and starts nothing.
func New(config Config) (*Controllers, error) {
	client, err := clientset.NewForConfig(rest.AddUserAgent(rest.CopyConfig(config.Client), Name))
	if err != nil {
		return nil, err
	}
	elected := owner
	if !config.Owner {
		if elected, err = among(); err != nil {
			return nil, err
		}
	}
	return &Controllers{
		config:   config,
		client:   client,
		election: elected,
		watchdog: leaderelection.NewLeaderHealthzAdaptor(elected.leaseDuration),
	}, nil
}

// Start lets this server take part in the election until ctx ends or Stop is called, and runs the controllers while it is
// elected.
func (c *Controllers) Start(ctx context.Context) error {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: Name,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: Name},
			Client:     c.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: c.election.identity},
		},
		LeaseDuration: c.election.leaseDuration,
		RenewDeadline: c.election.renewDeadline,
		RetryPeriod:   c.election.retryPeriod,
		// The lease goes back while the controllers end: the next holder looks only now and then, and what two of them do
		// at once is done once.
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: c.lead,
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("cannot elect a server to run the lifecycle controllers: %w", err)
	}
	c.watchdog.SetLeaderElection(elector)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil
	}
	ctx, c.cancel = context.WithCancel(ctx)
	c.running.Go(func() {
		// The server is not slowed down while it starts, and has made the namespace of the lease.
		if wait.PollUntilContextCancel(ctx, readyPoll, true, c.serverReady) != nil {
			return // told to stop
		}
		for ctx.Err() == nil {
			elector.Run(ctx) // returns when the lease is lost, too
		}
	})
	return nil
}

// Stop ends the controllers and gives the lease back. It returns when that is done, or after stopTimeout: with the datastore
// away it cannot be done.
func (c *Controllers) Stop() error {
	c.mu.Lock()
	c.stopped = true
	if c.cancel != nil {
		c.cancel()
	}
	c.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		c.running.Wait()
		c.leading.Lock()
		defer c.leading.Unlock()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(stopTimeout):
		klog.InfoS("Lifecycle controllers did not end in time")
	}
	return nil
}

// serverReady reports whether the API server serves everything and has made its namespaces.
func (c *Controllers) serverReady(ctx context.Context) (bool, error) {
	if c.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() != nil {
		return false, nil
	}
	_, err := c.client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	return err == nil, nil
}

// lead runs the controllers, except while a kube-controller-manager does, until ctx ends.
func (c *Controllers) lead(ctx context.Context) {
	c.leading.Lock()
	defer c.leading.Unlock()
	if c.config.Mode == On {
		c.runUntil(ctx)
		return
	}
	managers := followManager(ctx, c.client)
	var stop func() // nil while the controllers do not run
	for {
		select {
		case managed := <-managers:
			switch {
			case managed && stop != nil:
				klog.InfoS("Lifecycle controllers step aside: a kube-controller-manager holds its lease")
				stop()
				stop = nil
			case !managed && stop == nil:
				klog.InfoS("Lifecycle controllers start: no kube-controller-manager holds its lease")
				var running sync.WaitGroup
				runCtx, cancel := context.WithCancel(ctx)
				running.Go(func() { c.runUntil(runCtx) })
				stop = func() { cancel(); running.Wait() }
			}
		case <-ctx.Done():
			if stop != nil {
				stop()
			}
			return
		}
	}
}

// runUntil runs the controllers until ctx ends. What keeps them from starting may pass.
func (c *Controllers) runUntil(ctx context.Context) {
	runningGauge.Set(1)
	defer runningGauge.Set(0)
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		err := run(ctx, c.config)
		if ctx.Err() != nil {
			err = nil
		}
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		if err != nil {
			klog.ErrorS(err, "Lifecycle controllers cannot run")
		}
	}, retryPeriod)
}

// Name returns the name of the health check.
func (c *Controllers) Name() string { return Name }

// Check returns an error if the controllers should run here and do not, or if this server holds the lease and cannot renew it.
func (c *Controllers) Check(r *http.Request) error {
	c.mu.Lock()
	err := c.err
	c.mu.Unlock()
	if err != nil {
		return err
	}
	return c.watchdog.Check(r)
}
