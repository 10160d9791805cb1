package e2e

import (
	"os"
	"path/filepath"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/kubernetes/pkg/kubelet/certificate/bootstrap"
)

// joinRoles is what an administrator applies once, as kubeadm does: holders of bootstrap tokens may ask for the certificate
// of a node, and get it.
const joinRoles = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: nodes-ask}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-bootstrapper"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:bootstrappers"}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: nodes-get}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:certificates.k8s.io:certificatesigningrequests:nodeclient"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:bootstrappers"}]
---
apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-abcdef, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData: {token-id: abcdef, token-secret: "0123456789abcdef", usage-bootstrap-authentication: "true", usage-bootstrap-signing: "true"}
`

// TestJoin lets a kubelet join with the kubelet's own code: it comes with a token, and leaves with a certificate that lets it
// do a node's work and nothing else.
func TestJoin(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), start(t, t.TempDir())
	s.kubectlIn(t, joinRoles, "apply", "-f", "-")

	dir := t.TempDir()
	tokenFile, nodeFile := filepath.Join(dir, "bootstrap.kubeconfig"), filepath.Join(dir, "kubelet.kubeconfig")
	ca, err := os.ReadFile(filepath.Join(s.dir, "pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: s.config.Host, CertificateAuthorityData: ca}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "abcdef.0123456789abcdef"}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*config, tokenFile); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the token gives a certificate", func() error { // the server learns of roles and tokens from watches
		return bootstrap.LoadClientCert(ctx, nodeFile, tokenFile, filepath.Join(dir, "pki"), "worker")
	})
	requests, err := s.client.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
	if err != nil || len(requests.Items) != 1 || requests.Items[0].Spec.Username != "system:bootstrap:abcdef" ||
		requests.Items[0].Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		t.Errorf("signing requests: %v (%v)", requests.Items, err)
	}

	nodeConfig, err := clientcmd.BuildConfigFromFlags("", nodeFile)
	if err != nil {
		t.Fatal(err)
	}
	node, err := kubernetes.NewForConfig(nodeConfig)
	if err != nil {
		t.Fatal(err)
	}
	object := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	if _, err := node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: object("worker")}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("the node cannot register: %v", err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: object("worker")}
	if _, err := node.CoordinationV1().Leases("kube-node-lease").Create(ctx, lease, metav1.CreateOptions{}); err != nil {
		t.Errorf("the node cannot hold its lease: %v", err)
	}

	ns := s.namespace(t, "join")
	s.serviceAccount(t, ns)
	for _, name := range []string{"mine", "others"} {
		if _, err := s.client.CoreV1().Secrets(ns).Create(ctx, &corev1.Secret{ObjectMeta: object(name)}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	p := pod("a")
	p.Spec.NodeName = "worker"
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "mine"}}}}
	if _, err := s.client.CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node reads the secret of its pod", func() error {
		_, err := node.CoreV1().Secrets(ns).Get(ctx, "mine", metav1.GetOptions{})
		return err
	})

	forbidden := func(what string, err error) {
		t.Helper()
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want forbidden", what, err)
		}
	}
	_, err = node.CoreV1().Secrets(ns).Get(ctx, "others", metav1.GetOptions{})
	forbidden("a secret of no pod of the node", err)
	_, err = node.CoreV1().Secrets(ns).List(ctx, metav1.ListOptions{})
	forbidden("all secrets", err)
	_, err = node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: object("other")}, metav1.CreateOptions{})
	forbidden("another node", err)
	_, err = node.CoordinationV1().Leases("kube-node-lease").Create(ctx, &coordinationv1.Lease{ObjectMeta: object("other")}, metav1.CreateOptions{})
	forbidden("another node's lease", err)
	labelled, err := node.CoreV1().Nodes().Get(ctx, "worker", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	labelled.Labels = map[string]string{"node-restriction.kubernetes.io/zone": "here"}
	_, err = node.CoreV1().Nodes().Update(ctx, labelled, metav1.UpdateOptions{})
	forbidden("a label that only administrators set", err)
}
