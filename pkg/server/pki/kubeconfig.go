package pki

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig names what a kubeconfig file is made of.
type Kubeconfig struct {
	Server   string // URL
	CAFile   string // verifies the server
	User     string
	UserPair Pair
}

// Write writes the kubeconfig, whole and self-contained, to path, unless that is what the file says already.
func (k Kubeconfig) Write(path string) error {
	ca, err := os.ReadFile(k.CAFile)
	if err != nil {
		return err
	}
	cert, err := os.ReadFile(k.UserPair.CertFile)
	if err != nil {
		return err
	}
	key, err := os.ReadFile(k.UserPair.KeyFile)
	if err != nil {
		return err
	}
	const cluster = "kubase"
	context := k.User + "@" + cluster
	config := clientcmdapi.NewConfig()
	config.Clusters[cluster] = &clientcmdapi.Cluster{Server: k.Server, CertificateAuthorityData: ca}
	config.AuthInfos[k.User] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts[context] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: k.User}
	config.CurrentContext = context
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("cannot encode %s: %w", path, err)
	}
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if bytes.Equal(old, data) {
		return nil
	}
	return WriteFile(path, data)
}
