package server

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"testing/synctest"
	"time"
)

func TestProfileTunesGarbageCollector(t *testing.T) {
	const before = 77
	for _, c := range []struct {
		profile Profile
		gogc    string
		want    uint64
	}{
		{profileStandard, "", before},
		{profileEdge, "", 30},
		{profileEdge, "50", before}, // Go's runtime has read it already
	} {
		t.Run(string(c.profile)+c.gogc, func(t *testing.T) {
			t.Setenv("GOGC", c.gogc) // so that it is what it was afterwards
			if c.gogc == "" {
				if err := os.Unsetenv("GOGC"); err != nil {
					t.Fatal(err)
				}
			}
			defer debug.SetGCPercent(debug.SetGCPercent(before))
			c.profile.tune()
			sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
			metrics.Read(sample)
			if got := sample[0].Value.Uint64(); got != c.want {
				t.Errorf("garbage is collected at %d percent, want %d", got, c.want)
			}
		})
	}
}

func TestProfileGivesMemoryBack(t *testing.T) {
	forced := func(p Profile, stopAfter time.Duration) uint32 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), stopAfter)
			defer cancel()
			p.settle(ctx)
		})
		runtime.ReadMemStats(&after)
		return after.NumForcedGC - before.NumForcedGC
	}
	if got := forced(profileEdge, time.Hour); got != 1 {
		t.Errorf("memory was given back %d times, want once", got)
	}
	if got := forced(profileEdge, settling-time.Second); got != 0 {
		t.Errorf("memory was given back %d times by a server that stopped first, want never", got)
	}
	if got := forced(profileStandard, time.Hour); got != 0 {
		t.Errorf("memory was given back %d times without the profile, want never", got)
	}
}
