// Package v1alpha1 is version v1alpha1 of the API group datastore.kubase.io: what kubectl sees of where the objects are kept.
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the name of the API group.
const GroupName = "datastore.kubase.io"

// SchemeGroupVersion is this version of the group.
var SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

// AddToScheme makes the types known to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion, &Datastore{}, &DatastoreList{})
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}

// The types of conditions.
const (
	ConditionReady    = "Ready"    // it answers
	ConditionWritable = "Writable" // it takes writes
	ConditionSpaceLow = "SpaceLow" // it refuses writes for lack of space, or soon will
	// ConditionCompacting says of a SQL backend that history below the compact revision is still being deleted.
	ConditionCompacting = "Compacting"
)

// Datastore is a place where the API server keeps objects. It is made anew for each request and stored nowhere.
type Datastore struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Status            DatastoreStatus `json:"status,omitempty"`
}

// DatastoreStatus is how a datastore is at the time of the request, as seen by the API server that answers.
type DatastoreStatus struct {
	// Backend is sqlite, postgres or etcd3.
	Backend string `json:"backend"`
	// Endpoint is where the data is, without user names and passwords.
	Endpoint string `json:"endpoint,omitempty"`
	// EtcdVersion is the version of the etcd API.
	EtcdVersion string `json:"etcdVersion,omitempty"`
	// EngineVersion is the version of SQLite or of the Postgres server.
	EngineVersion string `json:"engineVersion,omitempty"`
	// SchemaVersion is the version of the tables.
	SchemaVersion int64 `json:"schemaVersion,omitempty"`
	// Revision is the newest revision.
	Revision int64 `json:"revision,omitempty"`
	// CompactRevision is the revision below which history is gone.
	CompactRevision int64 `json:"compactRevision,omitempty"`
	// LastCompactionTime is when the last compaction of a SQL backend, whichever server it was, began to delete history,
	// LastCompactionRevision the revision below which, and LastCompactionDuration how long it took; so far, if it still does.
	LastCompactionTime     *metav1.Time     `json:"lastCompactionTime,omitempty"`
	LastCompactionRevision int64            `json:"lastCompactionRevision,omitempty"`
	LastCompactionDuration *metav1.Duration `json:"lastCompactionDuration,omitempty"`
	// Keys is the number of live keys.
	Keys int64 `json:"keys"`
	// SizeBytes is the size of the database, and InUseBytes the part of it that holds data.
	SizeBytes  int64 `json:"sizeBytes"`
	InUseBytes int64 `json:"inUseBytes"`
	// WALBytes is the size of SQLite's write-ahead log.
	WALBytes int64 `json:"walBytes,omitempty"`
	// FreePagesBytes is the part of SQLite's file that a vacuum would give back.
	FreePagesBytes int64 `json:"freePagesBytes,omitempty"`
	// DeadRows is the number of rows in Postgres' tables that are dead and that no vacuum has removed, by Postgres' own statistics.
	DeadRows int64 `json:"deadRows,omitempty"`
	// Watchers is the number of open watches of this API server's datastore, and WatcherLag by how many revisions the slowest of
	// them is behind.
	Watchers   int32 `json:"watchers,omitempty"`
	WatcherLag int64 `json:"watcherLag,omitempty"`
	// Servers are the API servers that use the datastore.
	Servers []string `json:"servers,omitempty"`
	// Conditions are Ready, Writable and SpaceLow, and of SQL backends that answer Compacting.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// DatastoreList is a list of datastores.
type DatastoreList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Datastore `json:"items"`
}

// DeepCopyObject copies the datastore.
func (d *Datastore) DeepCopyObject() runtime.Object {
	out := *d
	d.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Status.LastCompactionTime = d.Status.LastCompactionTime.DeepCopy()
	if d.Status.LastCompactionDuration != nil {
		duration := *d.Status.LastCompactionDuration
		out.Status.LastCompactionDuration = &duration
	}
	out.Status.Servers = append([]string(nil), d.Status.Servers...)
	out.Status.Conditions = append([]metav1.Condition(nil), d.Status.Conditions...)
	return &out
}

// DeepCopyObject copies the list.
func (l *DatastoreList) DeepCopyObject() runtime.Object {
	out := *l
	l.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]Datastore, len(l.Items))
	for i := range l.Items {
		out.Items[i] = *l.Items[i].DeepCopyObject().(*Datastore)
	}
	return &out
}
