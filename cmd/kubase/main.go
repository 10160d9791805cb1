// Command kubase is a Kubernetes API server that keeps its objects in SQLite, Postgres or etcd.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	_ "time/tzdata" // CronJobs name time zones, and not every machine has the data

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/version/verflag"

	"github.com/kubase/kubase/pkg/server"
)

// kubeAPIServer is the name under which this program takes the place of the one it is named after.
const kubeAPIServer = "kube-apiserver"

func main() {
	command := newRootCommand()
	if filepath.Base(os.Args[0]) == kubeAPIServer {
		command = newAPIServerCommand(kubeAPIServer, server.NewKubeAPIServerOptions())
	}
	command.SetGlobalNormalizationFunc(cliflag.WordSepNormalizeFunc)
	command.SilenceErrors = true
	command.SilenceUsage = true
	if err := command.Execute(); err != nil {
		printErrors(os.Stderr, err)
		os.Exit(1)
	}
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubase",
		Short: "A Kubernetes API server on SQLite, Postgres or etcd",
		RunE: func(cmd *cobra.Command, _ []string) error {
			verflag.PrintAndExitIfRequested()
			return cmd.Help()
		},
	}
	root.AddCommand(
		newAPIServerCommand("apiserver", server.NewOptions()),
		newControllerManagerCommand(),
		newSchedulerCommand(),
		newEtcdCommand(),
		newVersionCommand(),
	)
	return root
}

// printErrors writes a line for each error. Nobody should have to search for what is wrong in a paragraph.
func printErrors(w io.Writer, err error) {
	var several []error
	switch e := err.(type) {
	case utilerrors.Aggregate:
		several = e.Errors()
	case interface{ Unwrap() []error }: // errors.Join
		several = e.Unwrap()
	default:
		fmt.Fprintln(w, "Error:", strings.Join(strings.Fields(err.Error()), " "))
	}
	for _, e := range several {
		printErrors(w, e)
	}
}
