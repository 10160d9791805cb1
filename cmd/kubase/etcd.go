package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kubase/kubase/pkg/server/datastore"
)

func newEtcdCommand() *cobra.Command {
	options := datastore.NewEtcdOptions()
	command := &cobra.Command{
		Use:   "etcd",
		Short: "Serve the etcd v3 API alone, on a SQL database",
		Long: "Serve the etcd v3 API alone, on a SQL database, for an existing kube-apiserver or any other etcd v3 client.\n" +
			"It serves until SIGTERM or SIGINT.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if errs := options.Validate(); len(errs) > 0 {
				return utilerrors.NewAggregate(errs)
			}
			return datastore.RunEtcd(genericapiserver.SetupSignalContext(), options, func() {
				fmt.Fprintf(cmd.OutOrStdout(), "kubase etcd is ready on %s\n", strings.Join(options.ListenClientURLs, ", "))
			})
		},
	}
	options.AddFlags(command.Flags())
	return command
}
