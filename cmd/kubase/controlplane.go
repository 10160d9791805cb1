package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/kubase/kubase/pkg/server"
)

func newControllerManagerCommand() *cobra.Command {
	return newUpstreamCommand("controller-manager", "Run kube-controller-manager beside the API server",
		controllermanager.NewControllerManagerCommand, server.ControllerManagerFlags)
}

func newSchedulerCommand() *cobra.Command {
	return newUpstreamCommand("scheduler", "Run kube-scheduler beside the API server",
		func() *cobra.Command { return scheduler.NewSchedulerCommand() }, server.SchedulerFlags)
}

// newUpstreamCommand wraps a command of Kubernetes. It has all its flags, and those that its user does not give are filled in
// from the data directory of an API server on this machine. The command is made when it is called: the options of every
// program at every start would cost time and memory.
func newUpstreamCommand(name, short string, upstream func() *cobra.Command, flags func(dataDir string) map[string]string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              short,
		DisableFlagParsing: true, // they are upstream's
		RunE: func(_ *cobra.Command, args []string) error {
			cmd := upstream()
			cmd.Use = "kubase " + name
			cmd.Long += "\n\nFlags that are not given are taken from --data-dir, the data directory of `kubase apiserver` on this machine."
			dataDir := cmd.Flags().String("data-dir", server.DefaultDataDir, "Data directory of the API server.")
			cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return fillIn(cmd, *dataDir, flags(*dataDir)) }
			cmd.SetArgs(args)
			return cli.RunNoErrOutput(cmd)
		},
	}
}

// fillIn sets the flags that the user did not give.
func fillIn(cmd *cobra.Command, dataDir string, flags map[string]string) error {
	given := cmd.Flags().Changed
	if given("master") || given("config") {
		delete(flags, "kubeconfig") // one says where the API server is, the other may
	} else if flags["kubeconfig"] == "" && !given("kubeconfig") {
		return fmt.Errorf("no kubeconfig in %q: start `kubase apiserver` first, or give its --data-dir or --kubeconfig", dataDir)
	}
	for name, value := range flags {
		if given(name) {
			continue
		}
		if err := cmd.Flags().Set(name, value); err != nil {
			return fmt.Errorf("cannot set --%s: %w", name, err)
		}
	}
	return nil
}
