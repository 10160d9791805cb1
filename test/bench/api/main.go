// Command api measures kubase beside upstream's kube-apiserver on etcd and on kine, all through the Kubernetes API and in one run: rates
// only mean something beside those of the same machine in the same minute.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/kubase/kubase/test/bench/table"
)

func main() {
	config := load{}
	only := flag.String("systems", "", "comma-separated systems to measure; empty: all")
	kubase := flag.String("kubase", "../../bin/kubase", "the kubase program")
	postgres := flag.String("postgres", "", "DSN of a Postgres server whose role may create databases; empty: Postgres is left out")
	flag.IntVar(&config.workers, "workers", 32, "concurrent requests")
	flag.DurationVar(&config.duration, "duration", 5*time.Second, "how long each workload runs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, config, *kubase, *postgres, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, config load, kubase, postgres, only string) error {
	var chosen []string
	if only != "" {
		chosen = strings.Split(only, ",")
	}
	dir, err := os.MkdirTemp("", "kubase-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p, err := build(ctx, dir, kubase)
	if err != nil {
		return err
	}
	var results []table.Result
	for _, s := range systems(p, postgres) {
		if len(chosen) > 0 && !slices.Contains(chosen, s.name) {
			continue
		}
		r, err := measure(ctx, s, config)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		results = append(results, r)
	}
	table.Print(os.Stdout, results, map[string][]string{
		"kubase-sqlite": {"upstream-etcd"}, "kubase-postgres": {"upstream-kine-postgres"},
	})
	return nil
}
