package lifecycle

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/discovery"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/controller-manager/pkg/clientbuilder"
)

// accountClients makes clients that speak as the service account of a controller, in kube-system, with the rights that
// the built-in roles give it: audit logs tell who did what, and requests have their place in priority and fairness.
type accountClients struct{ server *rest.Config }

var _ clientbuilder.ControllerClientBuilder = accountClients{}

func (a accountClients) as(account string) clientbuilder.SimpleControllerClientBuilder {
	config := rest.CopyConfig(a.server)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: serviceaccount.MakeUsername(metav1.NamespaceSystem, account),
		Groups:   append(serviceaccount.MakeGroupNames(metav1.NamespaceSystem), user.AllAuthenticated),
	}
	return clientbuilder.SimpleControllerClientBuilder{ClientConfig: config}
}

// privileged returns a client that speaks as the server itself.
func (a accountClients) privileged(name string) (clientset.Interface, error) {
	return clientbuilder.SimpleControllerClientBuilder{ClientConfig: a.server}.Client(name)
}

func (a accountClients) Config(name string) (*rest.Config, error) { return a.as(name).Config(name) }
func (a accountClients) ConfigOrDie(name string) *rest.Config     { return a.as(name).ConfigOrDie(name) }
func (a accountClients) Client(name string) (clientset.Interface, error) {
	return a.as(name).Client(name)
}
func (a accountClients) ClientOrDie(name string) clientset.Interface {
	return a.as(name).ClientOrDie(name)
}
func (a accountClients) DiscoveryClient(name string) (discovery.DiscoveryInterface, error) {
	return a.as(name).DiscoveryClient(name)
}
func (a accountClients) DiscoveryClientOrDie(name string) discovery.DiscoveryInterface {
	return a.as(name).DiscoveryClientOrDie(name)
}
