package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/flagz"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the server's own client
	_ "k8s.io/component-base/metrics/prometheus/version"  // metric kubernetes_build_info
	_ "k8s.io/component-base/metrics/prometheus/workqueue"
	"k8s.io/component-base/term"
	baseversion "k8s.io/component-base/version"
	"k8s.io/component-base/version/verflag"
	"k8s.io/klog/v2"

	"github.com/kubase/kubase/pkg/server"
)

func init() {
	utilruntime.Must(logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate))
}

func newAPIServerCommand(use string, o *server.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: "Run the API server",
		Long: `Run a Kubernetes API server. Without any flag it keeps its objects in an SQLite database and makes its own
certificates, all in --data-dir, and prints how to reach it. Every flag of kube-apiserver works.`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			verflag.PrintAndExitIfRequested()
			logs.InitLogs()
			defer logs.FlushLogs()
			return runAPIServer(cmd, o)
		},
	}
	flags := o.Flags()
	o.Flagz = flagz.NamedFlagSetsReader{FlagSets: flags}
	verflag.AddFlags(flags.FlagSet("global"))
	globalflag.AddGlobalFlags(flags.FlagSet("global"), cmd.Name(), logs.SkipLoggingConfigurationFlags())
	for _, fs := range flags.FlagSets {
		cmd.Flags().AddFlagSet(fs)
	}
	columns, _, _ := term.TerminalSize(cmd.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(cmd, flags, columns)
	return cmd
}

func runAPIServer(cmd *cobra.Command, o *server.Options) error {
	ctx := genericapiserver.SetupSignalContext()
	ready := func(url, kubeconfig string) {}
	var output *logsapi.LoggingOptions // nil: where the logging flags say
	if cmd.Name() != kubeAPIServer && !asksForLog(cmd.Flags()) {
		c := &console{out: cmd.OutOrStdout(), log: cmd.ErrOrStderr(), stopped: func() bool { return ctx.Err() != nil }}
		c.watch()
		ready = c.ready
		output = &logsapi.LoggingOptions{ErrorStream: c, InfoStream: c}
	}

	components := o.GenericServerRunOptions.ComponentGlobalsRegistry
	if err := components.Set(); err != nil {
		return fmt.Errorf("cannot set the feature gates: %w", err)
	}
	gates := components.FeatureGateFor(basecompatibility.DefaultKubeComponent)
	if err := logsapi.ValidateAndApplyWithOptions(o.Logs, output, gates); err != nil {
		return fmt.Errorf("cannot set up the log: %w", err)
	}
	cliflag.PrintFlags(cmd.Flags())
	klog.InfoS("Starting", "version", baseversion.Get())
	// The server's client would log the warnings that the server itself sends it.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})

	completed, err := o.Complete(ctx)
	if err != nil {
		return err
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return utilerrors.NewAggregate(errs)
	}
	if g, ok := gates.(featuregate.MutableFeatureGate); ok {
		g.AddMetrics()
	}
	components.AddMetrics()
	err = server.Run(ctx, completed, func() { ready(completed.ServerURL, completed.Kubeconfig) })
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // told to stop before it served: it did
	}
	return err
}

// asksForLog reports whether the user gave a flag that says how much or how to log.
func asksForLog(fs *pflag.FlagSet) bool {
	return fs.Changed("v") || fs.Changed("vmodule") || fs.Changed("logging-format")
}
