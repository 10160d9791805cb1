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

	"github.com/spf13/pflag"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

func TestProfileTunesGarbageCollector(t *testing.T) {
	const before = 77
	for _, c := range []struct {
		profile Profile
		gogc    string
		want    uint64
	}{
		{profileStandard, "", before},
		{profileEdge, "", 50},
		{profileEdge, "30", before}, // Go's runtime has read it already
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
	// forced runs a server for a while that allocates so much in each idle period.
	forced := func(p Profile, stopAfter time.Duration, allocates int) uint32 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), stopAfter)
			defer cancel()
			go func() {
				for next := time.Second; ; next = idlePeriod { // between two looks
					select {
					case <-ctx.Done():
						return
					case <-time.After(next):
						runtime.KeepAlive(make([]byte, allocates))
					}
				}
			}()
			p.settle(ctx)
		})
		runtime.ReadMemStats(&after)
		return after.NumForcedGC - before.NumForcedGC
	}
	const periods = settling + 3*idlePeriod + time.Second
	for _, c := range []struct {
		what      string
		profile   Profile
		stopAfter time.Duration
		allocates int
		want      uint32
	}{
		{"when idle", profileEdge, periods, 1 << 10, 4},
		{"when busy", profileEdge, periods, idleBytes, 1},
		{"when stopped first", profileEdge, settling - time.Second, 1 << 10, 0},
		{"without the profile", profileStandard, periods, 1 << 10, 0},
	} {
		if got := forced(c.profile, c.stopAfter, c.allocates); got != c.want {
			t.Errorf("%s memory was given back %d times, want %d", c.what, got, c.want)
		}
	}
}

func TestProfileLeavesOutNativeHistograms(t *testing.T) {
	for _, c := range []struct {
		flags []string
		want  bool
	}{
		{nil, true},
		{[]string{"--profile=edge"}, false},
		{[]string{"--profile=edge", "--feature-gates=SizeBasedListCostEstimate=true"}, false},
		{[]string{"--profile=edge", "--feature-gates=NativeHistograms=true"}, true}, // the last, since all flags of a process share their gates
	} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, nativeHistograms, true)
		o := NewOptions()
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		for _, section := range o.Flags().FlagSets {
			fs.AddFlagSet(section)
		}
		if err := fs.Parse(c.flags); err != nil {
			t.Fatal(err)
		}
		if err := o.completeFeatures(); err != nil {
			t.Fatal(err)
		}
		if got := utilfeature.DefaultFeatureGate.Enabled(nativeHistograms); got != c.want {
			t.Errorf("%q: native histograms are on: %t, want %t", c.flags, got, c.want)
		}
	}
}
