package server

import (
	"os"
	"path/filepath"
)

// DefaultDataDir is where the programs of one machine find each other's files when nobody says another place.
const DefaultDataDir = ".kubase"

// loopback is where a program listens that serves nothing but health and metrics.
const loopback = "127.0.0.1"

// ControllerManagerFlags returns flags of kube-controller-manager that make it work with the files that an API server made in
// dataDir. There are none for a file that is not there: the API server's user brought one of their own.
func ControllerManagerFlags(dataDir string) map[string]string {
	flags := clientFlags(dataDir, controllerManagerFile)
	addFiles(flags, filepath.Join(dataDir, "pki"), map[string]string{
		"root-ca-file":                     "ca.crt",
		"cluster-signing-cert-file":        "ca.crt",
		"cluster-signing-key-file":         "ca.key",
		"service-account-private-key-file": "sa.key",
	})
	flags["use-service-account-credentials"] = "true"
	flags["controllers"] = "*,bootstrap-signer-controller,token-cleaner-controller"
	return flags
}

// SchedulerFlags returns flags of kube-scheduler that make it work with the files that an API server made in dataDir.
func SchedulerFlags(dataDir string) map[string]string {
	return clientFlags(dataDir, schedulerFile)
}

func clientFlags(dataDir, user string) map[string]string {
	flags, kubeconfig := map[string]string{"bind-address": loopback}, user+".kubeconfig"
	addFiles(flags, dataDir, map[string]string{
		"kubeconfig": kubeconfig, "authentication-kubeconfig": kubeconfig, "authorization-kubeconfig": kubeconfig,
	})
	return flags
}

func addFiles(flags map[string]string, dir string, files map[string]string) {
	for flag, name := range files {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			flags[flag] = path
		}
	}
}
