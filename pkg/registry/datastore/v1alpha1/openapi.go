package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const model = "io.kubase.datastore.v1alpha1."

// OpenAPIModelName names the type in OpenAPI documents.
func (Datastore) OpenAPIModelName() string { return model + "Datastore" }

// OpenAPIModelName names the type in OpenAPI documents.
func (DatastoreList) OpenAPIModelName() string { return model + "DatastoreList" }

// OpenAPIModelName names the type in OpenAPI documents.
func (DatastoreStatus) OpenAPIModelName() string { return model + "DatastoreStatus" }

// GetOpenAPIDefinitions describes the types.
func GetOpenAPIDefinitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	text := func(description string) spec.Schema {
		return *spec.StringProperty().WithDescription(description)
	}
	number := func(description string) spec.Schema { return *spec.Int64Property().WithDescription(description) }
	refTo := func(name, description string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Description: description, Default: map[string]any{}, Ref: ref(name)}}
	}
	listOf := func(item spec.Schema, description string) spec.Schema {
		return *spec.ArrayProperty(&item).WithDescription(description)
	}
	object := func(description string, required []string, properties map[string]spec.Schema, dependencies ...string) common.OpenAPIDefinition {
		return common.OpenAPIDefinition{
			Schema: spec.Schema{SchemaProps: spec.SchemaProps{
				Type: []string{"object"}, Description: description, Properties: properties, Required: required,
			}},
			Dependencies: dependencies,
		}
	}
	kind := text("Kind is a string value representing the REST resource this object represents.")
	version := text("APIVersion defines the versioned schema of this representation of an object.")
	meta, listMeta, condition := metav1.ObjectMeta{}.OpenAPIModelName(), metav1.ListMeta{}.OpenAPIModelName(), metav1.Condition{}.OpenAPIModelName()
	status, datastore := DatastoreStatus{}.OpenAPIModelName(), Datastore{}.OpenAPIModelName()
	return map[string]common.OpenAPIDefinition{
		datastore: object("Datastore is a place where the API server keeps objects. It is made anew for each request and stored nowhere.", nil,
			map[string]spec.Schema{
				"kind": kind, "apiVersion": version, "metadata": refTo(meta, "Standard object's metadata."),
				"status": refTo(status, "How the datastore is at the time of the request, as seen by the API server that answers."),
			}, meta, status),
		DatastoreList{}.OpenAPIModelName(): object("DatastoreList is a list of datastores.", []string{"items"},
			map[string]spec.Schema{
				"kind": kind, "apiVersion": version, "metadata": refTo(listMeta, "Standard list metadata."),
				"items": listOf(refTo(datastore, ""), "The datastores in use."),
			}, listMeta, datastore),
		status: object("DatastoreStatus is how a datastore is at the time of the request, as seen by the API server that answers.",
			[]string{"backend", "keys", "sizeBytes", "inUseBytes"},
			map[string]spec.Schema{
				"backend":                text("sqlite, postgres or etcd3."),
				"endpoint":               text("Where the data is, without user names and passwords."),
				"etcdVersion":            text("Version of the etcd API."),
				"engineVersion":          text("Version of SQLite or of the Postgres server."),
				"schemaVersion":          number("Version of the tables."),
				"revision":               number("The newest revision."),
				"compactRevision":        number("The revision below which history is gone."),
				"lastCompactionTime":     *spec.DateTimeProperty().WithDescription("When the last compaction of a SQL backend, whichever server it was, began to delete history."),
				"lastCompactionRevision": number("The revision below which the last compaction deletes history."),
				"lastCompactionDuration": text("How long the last compaction took; so far, if it still deletes."),
				"keys":                   number("Number of live keys."),
				"sizeBytes":              number("Size of the database in bytes."),
				"inUseBytes":             number("The part of the database that holds data, in bytes."),
				"walBytes":               number("Size of SQLite's write-ahead log in bytes."),
				"freePagesBytes":         number("The part of SQLite's file that a vacuum would give back, in bytes."),
				"deadRows":               number("Rows in Postgres' tables that are dead and that no vacuum has removed, by Postgres' own statistics."),
				"watchers":               *spec.Int32Property().WithDescription("Number of open watches of this API server's datastore."),
				"watcherLag":             number("By how many revisions the slowest watch is behind."),
				"servers":                listOf(text(""), "The API servers that use the datastore."),
				"conditions":             listOf(refTo(condition, ""), "Ready: it answers. Writable: it takes writes. SpaceLow: it refuses writes for lack of space, or soon will. Compacting: history below the compact revision is still being deleted."),
			}, condition),
	}
}
