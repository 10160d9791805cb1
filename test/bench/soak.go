package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"golang.org/x/time/rate"
)

// The soak's load: as many keys as a busy small cluster has, compacted as the API server compacts, but more often.
const (
	soakKeys      = 10_000
	compactEvery  = 30 * time.Second
	samplesInSoak = 12
	mebibyte      = 1 << 20
)

// soak updates keys at random for a while, compacts, and prints how large everything is: nothing may grow once it is warm.
func soak(ctx context.Context, s system, config load, duration time.Duration, perSecond int) error {
	dir, err := os.MkdirTemp("", "kubase-soak-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	srv, err := start(ctx, s, dir)
	if err != nil {
		return err
	}
	defer srv.Stop()
	conn, err := srv.connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, duration)
	defer cancel()

	var writes atomic.Int64
	failed := make(chan error, config.workers)
	value := text(config.valueBytes)
	pace := rate.NewLimiter(rate.Inf, 0)
	if perSecond > 0 {
		pace = rate.NewLimiter(rate.Limit(perSecond), config.workers)
	}
	for range config.workers {
		go func() {
			for pace.Wait(ctx) == nil {
				if _, err := conn.Put(ctx, key(rand.IntN(soakKeys)), value); err != nil && ctx.Err() == nil {
					failed <- err
					return
				}
				writes.Add(1)
			}
		}()
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(out, "%s after\twrites/s\tdatabase MiB\tin use MiB\tWAL MiB\tmemory, own MiB\t\n", s.name)
	compact, sample := time.NewTicker(compactEvery), time.NewTicker(duration/samplesInSoak)
	defer compact.Stop()
	defer sample.Stop()
	began, before, compactTo := time.Now(), int64(0), int64(0)
	for {
		select {
		case <-ctx.Done():
			return out.Flush()
		case err := <-failed:
			return err
		case <-compact.C:
			// As the API server does: up to where the store stood at the last tick.
			if compactTo > 0 {
				if _, err := conn.Compact(ctx, compactTo); err != nil && ctx.Err() == nil {
					return err
				}
			}
			r, err := conn.Get(ctx, "/now")
			if err != nil {
				return ignoreEnd(ctx, err)
			}
			compactTo = r.Header.Revision
		case <-sample.C:
			status, err := conn.Status(ctx, srv.endpoint)
			if err != nil {
				return ignoreEnd(ctx, err)
			}
			n := writes.Load()
			_, own := srv.Memory()
			fmt.Fprintf(out, "%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t\n", time.Since(began).Round(time.Second),
				float64(n-before)/(duration.Seconds()/samplesInSoak), mib(status.DbSize), mib(status.DbSizeInUse), walSize(dir), own)
			before = n
		}
	}
}

func mib(bytes int64) float64 { return float64(bytes) / mebibyte }

// walSize is the size of SQLite's write-ahead log in MiB, 0 for other databases.
func walSize(dir string) float64 {
	files, err := filepath.Glob(filepath.Join(dir, "*-wal"))
	if err != nil || len(files) == 0 {
		return 0
	}
	info, err := os.Stat(files[0])
	if err != nil {
		return 0
	}
	return mib(info.Size())
}

func ignoreEnd(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil
	}
	return err
}
