// Command kubectl is upstream's of this Kubernetes release.
package main

import (
	"os"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // as upstream's has them
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
)

func main() { os.Exit(cli.Run(cmd.NewDefaultKubectlCommand())) }
