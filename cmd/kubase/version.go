package main

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"
	baseversion "k8s.io/component-base/version"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := baseversion.Get()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "kubase %s\ncommit %s, built %s with %s for %s\n",
				v.GitVersion, cmp.Or(v.GitCommit, "unknown"), v.BuildDate, v.GoVersion, v.Platform)
			return err
		},
	}
}
