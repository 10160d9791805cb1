package server

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	clientset "k8s.io/client-go/kubernetes"

	"github.com/kubase/kubase/pkg/registry/datastore/v1alpha1"
	"github.com/kubase/kubase/pkg/server/datastore"
)

const (
	// datastoreTimeout bounds how long a datastore may take to say how it is.
	datastoreTimeout = 5 * time.Second
	// spaceLow is how little free space in the file system is too little.
	spaceLow = 256 << 20
	// datastoreReaderRole lets those read datastores who may view.
	datastoreReaderRole = "kubase:aggregate-datastores-to-view"
	datastoreRolesHook  = "kubase-datastore-roles"
	// identityLeases selects the leases that API servers hold while they run.
	identityLeases = "apiserver.kubernetes.io/identity=kube-apiserver"
)

// datastores tells the API of where objects are kept.
type datastores struct {
	connections *etcdConnections
	store       *datastore.Datastore // nil if objects are kept in etcd only
	client      clientset.Interface
	started     metav1.Time
}

// list returns one datastore for each connection: the first is the one of most objects.
func (d *datastores) list(ctx context.Context) []v1alpha1.Datastore {
	ctx, cancel := context.WithTimeout(ctx, datastoreTimeout)
	defer cancel()
	servers := d.servers(ctx)
	var list []v1alpha1.Datastore
	for i, client := range d.connections.clients() {
		one := v1alpha1.Datastore{Status: d.status(ctx, client)}
		one.Name = one.Status.Backend
		if i > 0 {
			one.Name = fmt.Sprintf("%s-%d", one.Name, i)
		}
		one.ResourceVersion = strconv.FormatInt(one.Status.Revision, 10)
		one.Status.Servers = servers
		list = append(list, one)
	}
	return list
}

func (d *datastores) status(ctx context.Context, client *clientv3.Client) v1alpha1.DatastoreStatus {
	endpoints := client.Endpoints()
	s := v1alpha1.DatastoreStatus{Backend: backendEtcd, Endpoint: strings.Join(endpoints, ","), Keys: notCounted}
	low := ""
	var ready, writable error
	if d.store != nil && slices.Contains(endpoints, datastoreEndpoint) {
		known := d.store.Status()
		d.describe(&s, &known)
		if known.FilesystemFreeBytes >= 0 && known.FilesystemFreeBytes < spaceLow {
			low = fmt.Sprintf("%d MiB are left in the file system", known.FilesystemFreeBytes>>20)
		}
		ready, writable = known.Err, known.Err
	}
	if ready == nil {
		ready, writable = d.ask(ctx, client, &s)
	}
	s.Keys = max(s.Keys, 0)
	alarms, err := client.AlarmList(ctx)
	if err == nil {
		for _, alarm := range alarms.Alarms {
			if alarm.Alarm == etcdserverpb.AlarmType_NOSPACE {
				low = "the datastore refuses writes for lack of space"
				writable = fmt.Errorf("%s", low)
			}
		}
	}
	d.setCondition(&s, v1alpha1.ConditionReady, ready == nil, "Answers", "Unreachable", errorText(ready))
	d.setCondition(&s, v1alpha1.ConditionWritable, writable == nil, "TakesWrites", "RefusesWrites", errorText(writable))
	d.setCondition(&s, v1alpha1.ConditionSpaceLow, low != "", "SpaceLow", "SpaceLeft", low)
	return s
}

// notCounted stands for a number of keys that the datastore does not know without being asked.
const notCounted = -1

// ask fills in what the etcd API says and a SQL datastore has not said by itself. Both errors are nil if all is well.
func (d *datastores) ask(ctx context.Context, client *clientv3.Client, s *v1alpha1.DatastoreStatus) (ready, writable error) {
	status, err := client.Status(ctx, client.Endpoints()[0])
	if err != nil {
		return err, err
	}
	s.EtcdVersion, s.SizeBytes, s.InUseBytes = status.Version, status.DbSize, status.DbSizeInUse
	if s.Keys == notCounted {
		count, err := client.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
		if err != nil {
			return err, err
		}
		s.Keys, s.Revision = count.Count, count.Header.Revision
	}
	if s.Backend != backendEtcd {
		return nil, d.store.Check(ctx)
	}
	if status.Leader == 0 {
		return nil, fmt.Errorf("there is no leader")
	}
	return nil, nil
}

// describe fills in what a SQL datastore knows of itself, and what its database says if it answers.
func (d *datastores) describe(s *v1alpha1.DatastoreStatus, known *datastore.Status) {
	s.Backend, s.Endpoint, s.SchemaVersion = known.Backend, known.Endpoint, known.SchemaVersion
	s.Revision, s.CompactRevision, s.Keys = int64(known.Revision), int64(known.CompactRevision), known.Keys
	s.Watchers, s.WatcherLag, s.WALBytes = int32(known.Watchers), known.WatcherLag, known.WALBytes
	if known.Err != nil {
		return
	}
	database := &known.Database
	s.EngineVersion, s.FreePagesBytes, s.DeadRows = database.Version, known.FreePagesBytes(), database.DeadRows
	if last := database.LastCompaction; last.Revision > 0 {
		s.LastCompactionTime, s.LastCompactionRevision = &metav1.Time{Time: last.Began}, int64(last.Revision)
		s.LastCompactionDuration = &metav1.Duration{Duration: last.Took()}
	}
	behind := ""
	if known.Compacting() {
		behind = fmt.Sprintf("history is deleted up to revision %d of %d", database.Reached, database.Meta.CompactRevision)
	}
	d.setCondition(s, v1alpha1.ConditionCompacting, behind != "", "DeletingHistory", "HistoryDeleted", behind)
}

func (d *datastores) setCondition(s *v1alpha1.DatastoreStatus, kind string, is bool, yes, no, message string) {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: no, Message: message, LastTransitionTime: d.started}
	if is {
		c.Status, c.Reason = metav1.ConditionTrue, yes
	}
	meta.SetStatusCondition(&s.Conditions, c)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// servers returns the API servers that hold a lease; nil if nobody can say.
func (d *datastores) servers(ctx context.Context) []string {
	leases, err := d.client.CoordinationV1().Leases(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: identityLeases})
	if err != nil {
		return nil
	}
	var names []string
	for _, lease := range leases.Items {
		spec := lease.Spec
		if spec.RenewTime != nil && spec.LeaseDurationSeconds != nil &&
			time.Since(spec.RenewTime.Time) < time.Duration(*spec.LeaseDurationSeconds)*time.Second {
			names = append(names, lease.Name)
		}
	}
	slices.Sort(names)
	return names
}

// addReaderRole makes the role that is aggregated to view, and so to edit and admin. A changed one stays as it is.
func (d *datastores) addReaderRole(server *genericapiserver.GenericAPIServer) error {
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: datastoreReaderRole, Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"datastores"}, Verbs: []string{"get", "list", "watch"}}},
	}
	return server.AddPostStartHook(datastoreRolesHook, func(ctx genericapiserver.PostStartHookContext) error {
		go func() {
			// It ends with an error only when the server does.
			_ = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
				_, err := d.client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
				return err == nil || apierrors.IsAlreadyExists(err), nil
			})
		}()
		return nil
	})
}
