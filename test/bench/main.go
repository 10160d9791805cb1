// Command bench measures kubase beside etcd and kine, all through the etcd API and in one run: rates only mean something beside
// those of the same machine in the same minute.
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
	flag.IntVar(&config.keys, "keys", 5000, "keys that are there while reads are measured")
	flag.IntVar(&config.stored, "stored", 0, "more keys that are stored before anything is measured")
	flag.IntVar(&config.dead, "dead", 0, "dead versions, not compacted, among the keys that are measured")
	flag.IntVar(&config.workers, "workers", 64, "concurrent requests")
	flag.IntVar(&config.valueBytes, "value-bytes", 1024, "size of a value")
	flag.DurationVar(&config.duration, "duration", defaultDuration, "how long each read workload runs")
	workloads := flag.String("workloads", "", "comma-separated workloads to measure beside create; empty: all")
	soakTime := flag.Duration("soak", 0, "instead of measuring, write to each system for so long and print how large everything is")
	soakRate := flag.Int("soak-rate", 0, "writes a second in a soak; 0: as many as it takes")
	flag.Parse()
	if *workloads != "" {
		config.workloads = strings.Split(*workloads, ",")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, config, *kubase, *postgres, *only, *soakTime, *soakRate); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, config load, kubase, postgres, only string, soakTime time.Duration, soakRate int) error {
	programs, err := build(ctx, kubase)
	if err != nil {
		return err
	}
	defer os.RemoveAll(programs.dir)
	var results []table.Result
	for _, s := range systems(programs, postgres) {
		if only != "" && !slices.Contains(strings.Split(only, ","), s.name) {
			continue
		}
		if soakTime > 0 {
			if err := soak(ctx, s, config, soakTime, soakRate); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			continue
		}
		r, err := measure(ctx, s, config)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		results = append(results, r)
	}
	table.Print(os.Stdout, results, map[string][]string{
		"kubase-sqlite": {"etcd", "kine-sqlite"}, "kubase-postgres": {"etcd", "kine-postgres"},
	})
	return nil
}
