// Command controller-runtime is a controller as people write them with controller-runtime, with an elected leader, for the custom resource
// Garden: it has a finalizer, owns a ConfigMap, and finds other gardens through an index of its cache.
package main

import (
	"context"
	"flag"
	"log"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	finalizer = "example.com/farewell"
	index     = "spec.gardener"
)

var gardens = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Garden"}

func main() {
	name := flag.String("name", "", "what it calls itself in the status of gardens")
	flag.Parse() // controller-runtime adds --kubeconfig
	ctrl.SetLogger(klog.Background())
	if err := run(ctrl.SetupSignalHandler(), *name); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, name string) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	lease, renew, retry := 4*time.Second, 3*time.Second, time.Second // who waits for the next leader waits little
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Client:         client.Options{Cache: &client.CacheOptions{Unstructured: true}}, // gardens too are read from the cache
		Metrics:        server.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionID: "gardener", LeaderElectionNamespace: "kube-system",
		LeaseDuration: &lease, RenewDeadline: &renew, RetryPeriod: &retry,
	})
	if err != nil {
		return err
	}
	if err := manager.GetFieldIndexer().IndexField(ctx, newGarden(), index, func(o client.Object) []string { return []string{gardenerOf(o)} }); err != nil {
		return err
	}
	reconciler := &reconciler{Client: manager.GetClient(), name: name}
	if err := ctrl.NewControllerManagedBy(manager).For(newGarden()).Owns(&corev1.ConfigMap{}).Complete(reconciler); err != nil {
		return err
	}
	return manager.Start(ctx)
}

type reconciler struct {
	client.Client
	name string
}

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	garden := newGarden()
	if err := r.Get(ctx, request.NamespacedName, garden); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if garden.GetDeletionTimestamp() != nil {
		return ctrl.Result{}, r.finish(ctx, garden)
	}
	if controllerutil.AddFinalizer(garden, finalizer) {
		if err := r.Update(ctx, garden); err != nil {
			return ctrl.Result{}, err
		}
	}
	plan := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: garden.GetNamespace(), Name: garden.GetName()}}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, plan, func() error {
		plan.Data = map[string]string{"gardener": gardenerOf(garden)}
		return controllerutil.SetControllerReference(garden, plan, r.Scheme())
	}); err != nil {
		return ctrl.Result{}, err
	}
	same := &unstructured.UnstructuredList{}
	same.SetGroupVersionKind(gardens)
	if err := r.List(ctx, same, client.InNamespace(garden.GetNamespace()), client.MatchingFields{index: gardenerOf(garden)}); err != nil {
		return ctrl.Result{}, err
	}
	garden.Object["status"] = map[string]any{"by": r.name, "gardens": int64(len(same.Items))}
	return ctrl.Result{}, r.Status().Update(ctx, garden)
}

// finish leaves a note of a garden that is being deleted, and lets it go.
func (r *reconciler) finish(ctx context.Context, garden *unstructured.Unstructured) error {
	if !controllerutil.RemoveFinalizer(garden, finalizer) {
		return nil
	}
	note := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: garden.GetNamespace(), Name: "farewell-" + garden.GetName()}}
	if err := r.Create(ctx, note); client.IgnoreAlreadyExists(err) != nil {
		return err
	}
	return r.Update(ctx, garden)
}

func newGarden() *unstructured.Unstructured {
	garden := &unstructured.Unstructured{}
	garden.SetGroupVersionKind(gardens)
	return garden
}

func gardenerOf(garden client.Object) string {
	name, _, _ := unstructured.NestedString(garden.(*unstructured.Unstructured).Object, "spec", "gardener") // the schema says it is one
	return name
}
