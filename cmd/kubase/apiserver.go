package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
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
			return runAPIServer(cmd, o, use != kubeAPIServer)
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

func runAPIServer(cmd *cobra.Command, o *server.Options, forPeople bool) error {
	components := o.GenericServerRunOptions.ComponentGlobalsRegistry
	if err := components.Set(); err != nil {
		return fmt.Errorf("cannot set the feature gates: %w", err)
	}
	gates := components.FeatureGateFor(basecompatibility.DefaultKubeComponent)
	if err := logsapi.ValidateAndApplyWithOptions(o.Logs, logOutput(cmd, forPeople), gates); err != nil {
		return err
	}
	cliflag.PrintFlags(cmd.Flags())
	klog.InfoS("Starting", "version", baseversion.Get())
	// The server's client would log the warnings that the server itself sends it.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})

	ctx := genericapiserver.SetupSignalContext()
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
	return server.Run(ctx, completed, func() {
		if forPeople {
			printReady(cmd.OutOrStdout(), completed)
		}
	})
}

// printReady says what to do next.
func printReady(w io.Writer, o server.CompletedOptions) {
	fmt.Fprintf(w, "kubase %s is ready.\n", baseversion.Get().GitVersion)
	fmt.Fprintf(w, "  server      %s\n", o.ServerURL)
	if o.Kubeconfig != "" {
		fmt.Fprintf(w, "  kubeconfig  %s\n", o.Kubeconfig)
		fmt.Fprintf(w, "  try         kubectl --kubeconfig %s get namespaces\n", o.Kubeconfig)
	}
}

// logOutput keeps all but errors from people who did not ask for more: they would not see what printReady says.
// Any flag about the log means that somebody did ask.
func logOutput(cmd *cobra.Command, forPeople bool) *logsapi.LoggingOptions {
	for _, name := range []string{"v", "vmodule", "logging-format", "log-json-split-stream", "log-text-split-stream"} {
		if cmd.Flags().Changed(name) {
			forPeople = false
		}
	}
	if !forPeople {
		return nil
	}
	return &logsapi.LoggingOptions{ErrorStream: onlyErrors{os.Stderr}, InfoStream: io.Discard}
}

// onlyErrors drops messages of info and warning. The text format writes a message with one call, its severity first.
type onlyErrors struct{ io.Writer }

func (w onlyErrors) Write(message []byte) (int, error) {
	if len(message) > 0 && (message[0] == 'I' || message[0] == 'W') {
		return len(message), nil
	}
	return w.Writer.Write(message)
}
