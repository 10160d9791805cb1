package registry

import (
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	admissionregistrationrest "k8s.io/kubernetes/pkg/registry/admissionregistration/rest"
	apiserverinternalrest "k8s.io/kubernetes/pkg/registry/apiserverinternal/rest"
	appsrest "k8s.io/kubernetes/pkg/registry/apps/rest"
	authenticationrest "k8s.io/kubernetes/pkg/registry/authentication/rest"
	authorizationrest "k8s.io/kubernetes/pkg/registry/authorization/rest"
	autoscalingrest "k8s.io/kubernetes/pkg/registry/autoscaling/rest"
	batchrest "k8s.io/kubernetes/pkg/registry/batch/rest"
	certificatesrest "k8s.io/kubernetes/pkg/registry/certificates/rest"
	coordinationrest "k8s.io/kubernetes/pkg/registry/coordination/rest"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"
	discoveryrest "k8s.io/kubernetes/pkg/registry/discovery/rest"
	eventsrest "k8s.io/kubernetes/pkg/registry/events/rest"
	flowcontrolrest "k8s.io/kubernetes/pkg/registry/flowcontrol/rest"
	lifecyclerest "k8s.io/kubernetes/pkg/registry/lifecycle/rest"
	networkingrest "k8s.io/kubernetes/pkg/registry/networking/rest"
	noderest "k8s.io/kubernetes/pkg/registry/node/rest"
	policyrest "k8s.io/kubernetes/pkg/registry/policy/rest"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	resourcerest "k8s.io/kubernetes/pkg/registry/resource/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"
	storagerest "k8s.io/kubernetes/pkg/registry/storage/rest"
	svmrest "k8s.io/kubernetes/pkg/registry/storagemigration/rest"

	"github.com/kubase/kubase/pkg/registry/datastore"
	"github.com/kubase/kubase/pkg/registry/datastore/v1alpha1"
)

// provider is short for the type that every row of the table returns.
type provider = controlplaneapiserver.RESTStorageProvider

// group is an API group: its name, its priority among the groups, its versions with their priorities inside the group,
// and what stores its resources.
type group struct {
	name     string
	priority int32
	versions []version
	storage  func(Config) (provider, error) // nil if another server of the chain serves the group
}

type version struct {
	name     string
	priority int32
}

// groups has the rows in the order in which the core server installs them, which is the order of its own discovery.
// A group stands after another that serves a resource of the same name and should win: apps after everything that once
// was in extensions, events.k8s.io after the core group. The numbers are Kubernetes' own; clients depend on them.
var groups = []group{
	{"", 18000, []version{{"v1", 1}}, core},
	{"internal.apiserver.k8s.io", 16000, []version{{"v1alpha1", 9}}, is(apiserverinternalrest.StorageProvider{})},
	{"authentication.k8s.io", 17700, []version{{"v1", 15}, {"v1beta1", 9}, {"v1alpha1", 1}}, authentication},
	{"authorization.k8s.io", 17600, []version{{"v1", 15}}, authorization},
	{"autoscaling", 17500, []version{{"v2", 30}, {"v1", 15}}, is(autoscalingrest.RESTStorageProvider{})},
	{"batch", 17400, []version{{"v1", 15}}, is(batchrest.RESTStorageProvider{})},
	{"certificates.k8s.io", 17300, []version{{"v1", 15}, {"v1beta1", 9}, {"v1alpha1", 1}}, certificates},
	{"coordination.k8s.io", 16500, []version{{"v1", 15}, {"v1beta1", 13}, {"v1alpha2", 12}}, is(coordinationrest.RESTStorageProvider{})},
	{"discovery.k8s.io", 16200, []version{{"v1", 15}}, is(discoveryrest.StorageProvider{})},
	{"lifecycle.k8s.io", 15700, []version{{"v1alpha1", 1}}, is(lifecyclerest.RESTStorageProvider{})},
	{"networking.k8s.io", 17200, []version{{"v1", 15}, {"v1beta1", 9}}, is(networkingrest.RESTStorageProvider{})},
	{"node.k8s.io", 16300, []version{{"v1", 15}}, is(noderest.RESTStorageProvider{})},
	{"policy", 17100, []version{{"v1", 15}}, is(policyrest.RESTStorageProvider{})},
	{"rbac.authorization.k8s.io", 17000, []version{{"v1", 15}}, rbac},
	{"scheduling.k8s.io", 16600, []version{{"v1", 15}, {"v1beta1", 9}, {"v1alpha3", 3}}, is(schedulingrest.RESTStorageProvider{})},
	{"storage.k8s.io", 16800, []version{{"v1", 15}, {"v1beta1", 9}, {"v1alpha1", 1}}, is(storagerest.RESTStorageProvider{})},
	{"storagemigration.k8s.io", 15800, []version{{"v1", 15}, {"v1beta1", 9}}, is(svmrest.RESTStorageProvider{})},
	{"flowcontrol.apiserver.k8s.io", 16100, []version{{"v1", 21}, {"v1beta3", 18}, {"v1beta2", 15}, {"v1beta1", 12}}, flowcontrol},
	{"apps", 17800, []version{{"v1", 15}}, is(appsrest.StorageProvider{})},
	{"admissionregistration.k8s.io", 16700, []version{{"v1", 15}, {"v1beta1", 12}, {"v1alpha1", 9}}, admissionregistration},
	{"events.k8s.io", 17750, []version{{"v1", 15}}, events},
	{"resource.k8s.io", 16200, []version{{"v1", 21}, {"v1beta2", 15}, {"v1beta1", 9}, {"v1alpha3", 1}}, resource},
	{v1alpha1.GroupName, 15000, []version{{"v1alpha1", 1}}, datastores},

	{"apiextensions.k8s.io", 16700, []version{{"v1", 15}}, nil}, // the extension server
}

// is is the row of a group whose storage needs nothing.
func is(p provider) func(Config) (provider, error) {
	return func(Config) (provider, error) { return p, nil }
}

func core(c Config) (provider, error) {
	authorizer := c.ControlPlane.Generic.Authorization.Authorizer
	return corerest.New(corerest.Config{
		GenericConfig:       *c.ControlPlane.NewCoreGenericConfig(),
		Proxy:               c.Proxy,
		Services:            c.Services,
		EndpointSliceGetter: c.ControlPlane.EndpointSliceGetter,
		Authorizer:          authorizer,
	}, authorizer)
}

func authentication(c Config) (provider, error) {
	a := c.ControlPlane.Generic.Authentication
	return authenticationrest.RESTStorageProvider{Authenticator: a.Authenticator, APIAudiences: a.APIAudiences}, nil
}

func authorization(c Config) (provider, error) {
	g := c.ControlPlane.Generic
	return authorizationrest.RESTStorageProvider{Authorizer: g.Authorization.Authorizer, RuleResolver: g.RuleResolver}, nil
}

func certificates(c Config) (provider, error) {
	return certificatesrest.RESTStorageProvider{Authorizer: c.ControlPlane.Generic.Authorization.Authorizer}, nil
}

func rbac(c Config) (provider, error) {
	return rbacrest.RESTStorageProvider{Authorizer: c.ControlPlane.Generic.Authorization.Authorizer}, nil
}

func flowcontrol(c Config) (provider, error) {
	return flowcontrolrest.RESTStorageProvider{InformerFactory: c.ControlPlane.Generic.SharedInformerFactory}, nil
}

func admissionregistration(c Config) (provider, error) {
	return admissionregistrationrest.RESTStorageProvider{
		Authorizer:      c.ControlPlane.Generic.Authorization.Authorizer,
		DiscoveryClient: c.Client.Discovery(),
	}, nil
}

func events(c Config) (provider, error) {
	return eventsrest.RESTStorageProvider{TTL: c.ControlPlane.EventTTL}, nil
}

func datastores(c Config) (provider, error) {
	return datastore.Provider{Source: c.Datastores}, nil
}

func resource(c Config) (provider, error) {
	return resourcerest.RESTStorageProvider{
		NamespaceClient: c.Client.CoreV1().Namespaces(),
		Authorizer:      c.ControlPlane.Generic.Authorization.Authorizer,
	}, nil
}
