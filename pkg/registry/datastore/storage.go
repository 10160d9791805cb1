// Package datastore serves the API group datastore.kubase.io.
package datastore

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/utils/ptr"

	"github.com/kubase/kubase/pkg/registry/datastore/v1alpha1"
)

func init() {
	utilruntime.Must(v1alpha1.AddToScheme(legacyscheme.Scheme))
	utilruntime.Must(legacyscheme.Scheme.SetVersionPriority(v1alpha1.SchemeGroupVersion))
}

// refreshInterval is how often a watch looks for what has changed.
const refreshInterval = 5 * time.Second

// Source tells of the datastores in use, as they are now. One that does not answer is among them, and not ready.
type Source func(context.Context) []v1alpha1.Datastore

// Provider is the group's storage.
type Provider struct{ Source Source }

// GroupName is the name of the group.
func (Provider) GroupName() string { return v1alpha1.GroupName }

// NewRESTStorage returns what the server installs.
func (p Provider) NewRESTStorage(enabled serverstorage.APIResourceConfigSource, _ generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(v1alpha1.GroupName, legacyscheme.Scheme, legacyscheme.ParameterCodec, legacyscheme.Codecs)
	info.NegotiatedSerializer = noProtobuf{info.NegotiatedSerializer}
	if datastores := v1alpha1.SchemeGroupVersion.WithResource("datastores"); enabled.ResourceEnabled(datastores) {
		info.VersionedResourcesStorageMap[datastores.Version] = map[string]rest.Storage{datastores.Resource: &storage{p.Source}}
	}
	return info, nil
}

// noProtobuf serves clients that would rather have protobuf, which these types do not know, the next thing they take.
type noProtobuf struct{ runtime.NegotiatedSerializer }

func (s noProtobuf) SupportedMediaTypes() []runtime.SerializerInfo {
	return slices.DeleteFunc(slices.Clone(s.NegotiatedSerializer.SupportedMediaTypes()), func(info runtime.SerializerInfo) bool {
		return info.MediaType == runtime.ContentTypeProtobuf
	})
}

type storage struct{ source Source }

var _ interface {
	rest.Getter
	rest.Lister
	rest.Watcher
	rest.Scoper
	rest.SingularNameProvider
} = &storage{}

func (s *storage) New() runtime.Object     { return &v1alpha1.Datastore{} }
func (s *storage) NewList() runtime.Object { return &v1alpha1.DatastoreList{} }
func (s *storage) Destroy()                {}
func (s *storage) NamespaceScoped() bool   { return false }
func (s *storage) GetSingularName() string { return "datastore" }

func (s *storage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	for _, d := range s.source(ctx) {
		if d.Name == name {
			return &d, nil
		}
	}
	return nil, apierrors.NewNotFound(v1alpha1.SchemeGroupVersion.WithResource("datastores").GroupResource(), name)
}

func (s *storage) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	return s.list(ctx, options), nil
}

func (s *storage) list(ctx context.Context, options *internalversion.ListOptions) *v1alpha1.DatastoreList {
	byLabel, byField := labels.Everything(), fields.Everything()
	if options != nil && options.LabelSelector != nil {
		byLabel = options.LabelSelector
	}
	if options != nil && options.FieldSelector != nil {
		byField = options.FieldSelector
	}
	list := &v1alpha1.DatastoreList{Items: []v1alpha1.Datastore{}}
	for _, d := range s.source(ctx) {
		if byLabel.Matches(labels.Set(d.Labels)) && byField.Matches(fields.Set{metav1.ObjectNameField: d.Name}) {
			list.Items = append(list.Items, d)
		}
		if list.ResourceVersion == "" {
			list.ResourceVersion = d.ResourceVersion // of the one that holds most objects
		}
	}
	return list
}

// Watch sends the datastores, and each again when it has changed. The resource version asked for is not looked at, since only the
// present is known: a client that has listed gets once more what it has.
func (s *storage) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	events := make(chan watch.Event)
	watcher := watch.NewProxyWatcher(events)
	go func() {
		defer close(events)
		ticker := time.NewTicker(refreshInterval)
		defer ticker.Stop()
		send := func(event watch.Event) bool {
			select {
			case events <- event:
				return true
			case <-watcher.StopChan():
			case <-ctx.Done():
			}
			return false
		}
		sent := map[string]v1alpha1.DatastoreStatus{}
		for first := true; ; first = false {
			list := s.list(ctx, options)
			for _, d := range list.Items {
				before, known := sent[d.Name]
				if known && reflect.DeepEqual(before, d.Status) {
					continue
				}
				event := watch.Event{Type: watch.Added, Object: &d}
				if known {
					event.Type = watch.Modified
				}
				sent[d.Name] = d.Status
				if !send(event) {
					return
				}
			}
			if first && options != nil && options.AllowWatchBookmarks && ptr.Deref(options.SendInitialEvents, false) {
				if !send(watch.Event{Type: watch.Bookmark, Object: initialEventsEnd(list.ResourceVersion)}) {
					return
				}
			}
			select {
			case <-ticker.C:
			case <-watcher.StopChan():
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return watcher, nil
}

// initialEventsEnd tells a client that lists by watching that it has the list.
func initialEventsEnd(resourceVersion string) *v1alpha1.Datastore {
	return &v1alpha1.Datastore{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: resourceVersion, Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}}
}

var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name"},
	{Name: "Backend", Type: "string"},
	{Name: "Ready", Type: "string", Description: "Whether it answers."},
	{Name: "Writable", Type: "string", Description: "Whether it takes writes."},
	{Name: "Revision", Type: "integer"},
	{Name: "Keys", Type: "integer"},
	{Name: "Size", Type: "string", Description: "Size of the database."},
	{Name: "Watchers", Type: "integer"},
	{Name: "Compacted", Type: "integer", Priority: 1, Description: "Revision below which history is gone."},
	{Name: "Lag", Type: "integer", Priority: 1, Description: "Revisions that the slowest watch is behind."},
	{Name: "Servers", Type: "integer", Priority: 1},
	{Name: "Endpoint", Type: "string", Priority: 1},
}

// ConvertToTable is what kubectl get prints.
func (s *storage) ConvertToTable(_ context.Context, object, _ runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{ColumnDefinitions: columns}
	row := func(d *v1alpha1.Datastore) {
		table.Rows = append(table.Rows, metav1.TableRow{Object: runtime.RawExtension{Object: d}, Cells: []any{
			d.Name, d.Status.Backend, condition(d, v1alpha1.ConditionReady), condition(d, v1alpha1.ConditionWritable),
			d.Status.Revision, d.Status.Keys, resource.NewQuantity(d.Status.SizeBytes>>10<<10, resource.BinarySI).String(), d.Status.Watchers,
			d.Status.CompactRevision, d.Status.WatcherLag, len(d.Status.Servers), d.Status.Endpoint,
		}})
	}
	switch o := object.(type) {
	case *v1alpha1.Datastore:
		table.ResourceVersion = o.ResourceVersion
		row(o)
	case *v1alpha1.DatastoreList:
		table.ResourceVersion = o.ResourceVersion
		for i := range o.Items {
			row(&o.Items[i])
		}
	default:
		return nil, fmt.Errorf("a %T is no datastore", object)
	}
	return table, nil
}

func condition(d *v1alpha1.Datastore, kind string) string {
	if c := meta.FindStatusCondition(d.Status.Conditions, kind); c != nil {
		return string(c.Status)
	}
	return string(metav1.ConditionUnknown)
}
