package lifecycle

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	serviceaccountcontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/controller/validatingadmissionpolicystatus"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// loop is a controller that is built here and not by kube-controller-manager.
type loop struct {
	name    string
	run     func(ctx context.Context, workers int)
	workers int32
}

func (l loop) Name() string            { return l.name }
func (l loop) Run(ctx context.Context) { l.run(ctx, int(l.workers)) }

// newTokens builds the controller that keeps a token in every secret that asks for one; kube-controller-manager starts it
// apart from the others. It returns nil if there is no key to sign tokens with.
func newTokens(ctx context.Context, c controllermanager.ControllerContext, config Config) (controllermanager.Controller, error) {
	if config.Files.ServiceAccountKey == "" {
		return nil, nil
	}
	key, err := keyutil.PrivateKeyFromFile(config.Files.ServiceAccountKey)
	if err != nil {
		return nil, fmt.Errorf("cannot read the key of service account tokens: %w", err)
	}
	generator, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return nil, fmt.Errorf("cannot sign service account tokens: %w", err)
	}
	var rootCA []byte
	if config.Files.RootCA != "" {
		if rootCA, err = os.ReadFile(config.Files.RootCA); err != nil {
			return nil, err
		}
	}
	client, err := accountClients{config.Client}.privileged("tokens-controller")
	if err != nil {
		return nil, err
	}
	controller, err := serviceaccountcontroller.NewTokensController(klog.FromContext(ctx),
		c.InformerFactory.Core().V1().ServiceAccounts(), c.InformerFactory.Core().V1().Secrets(), client,
		serviceaccountcontroller.TokensControllerOptions{TokenGenerator: generator, RootCA: rootCA})
	if err != nil {
		return nil, err
	}
	return loop{names.ServiceAccountTokenController, controller.Run, c.ComponentConfig.SAController.ConcurrentSATokenSyncs}, nil
}

// newPolicyStatus builds the controller that checks the types in admission policies. It asks the server for the schemas
// that a policy needs; kube-controller-manager's own keeps all of them in memory, which is 8 MB.
func newPolicyStatus(_ context.Context, c controllermanager.ControllerContext, _ Config) (controllermanager.Controller, error) {
	const name = names.ValidatingAdmissionPolicyStatusController
	client, err := c.NewClient(name)
	if err != nil {
		return nil, err
	}
	controller, err := validatingadmissionpolicystatus.NewController(
		c.InformerFactory.Admissionregistration().V1().ValidatingAdmissionPolicies(),
		client.AdmissionregistrationV1().ValidatingAdmissionPolicies(),
		&validating.TypeChecker{
			SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: client.Discovery()},
			RestMapper:     c.RESTMapper,
		})
	if err != nil {
		return nil, err
	}
	return loop{name, controller.Run, c.ComponentConfig.ValidatingAdmissionPolicyStatusController.ConcurrentPolicySyncs}, nil
}
