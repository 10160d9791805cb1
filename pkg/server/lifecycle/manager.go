package lifecycle

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// managerLease is the lease that kube-controller-managers elect by, in kube-system, unless a flag of theirs says otherwise.
const managerLease = "kube-controller-manager"

// followManager tells, until ctx ends, whether a kube-controller-manager holds its lease: at once, and at every change.
func followManager(ctx context.Context, client clientset.Interface) <-chan bool {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithNamespace(metav1.NamespaceSystem),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, managerLease).String()
		}))
	informer := factory.Coordination().V1().Leases().Informer()
	changed := make(chan struct{}, 1)
	notify := func(any) {
		select {
		case changed <- struct{}{}:
		default: // somebody will look already
		}
	}
	// It fails only if the informer has stopped, and it has not started.
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: notify, UpdateFunc: func(any, any) { notify(nil) }, DeleteFunc: notify,
	})
	factory.Start(ctx.Done())

	held := make(chan bool)
	go func() {
		defer factory.Shutdown()
		if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			return
		}
		var h holding
		for {
			lease, _, _ := informer.GetStore().GetByKey(metav1.NamespaceSystem + "/" + managerLease)
			current, _ := lease.(*coordinationv1.Lease) // nil if there is none
			left := h.observe(current, time.Now())
			select {
			case held <- left > 0:
			case <-ctx.Done():
				return
			}
			var expiry <-chan time.Time // nil: never
			if left > 0 {
				expiry = time.After(left)
			}
			select {
			case <-changed:
			case <-expiry:
			case <-ctx.Done():
				return
			}
		}
	}()
	return held
}

// holding follows who holds a lease, as seen from here.
type holding struct {
	version string    // of the lease that was seen last
	until   time.Time // when it expires if it is not renewed
}

// observe returns for how long the lease is held if it is not renewed, nothing or less if it is not. Like a leader election it
// counts from when it saw the lease renewed, by its own clock. For a lease that it sees for the first time it believes the
// holder's clock, else every start would wait for a kube-controller-manager that is long gone.
func (h *holding) observe(lease *coordinationv1.Lease, now time.Time) time.Duration {
	if lease == nil || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" ||
		lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil {
		*h = holding{}
		return 0
	}
	if lease.ResourceVersion != h.version {
		renewed := now
		if h.version == "" && lease.Spec.RenewTime.Time.Before(now) {
			renewed = lease.Spec.RenewTime.Time
		}
		h.version = lease.ResourceVersion
		h.until = renewed.Add(time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second)
	}
	return h.until.Sub(now)
}
