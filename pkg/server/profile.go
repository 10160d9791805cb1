package server

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	metricsfeatures "k8s.io/component-base/metrics/features"
	"k8s.io/klog/v2"
)

// Profile is the kind of machine that the server is tuned for.
type Profile string

const (
	profileStandard Profile = "standard"
	profileEdge     Profile = "edge"
)

const (
	// edgeGCPercent lets the heap grow by this much of what is in use before the garbage collector runs; Go's default is 100.
	edgeGCPercent = 50
	// settling is how long after the server is ready its hooks and controllers have done what they do once, and package openapi has let go
	// what the aggregator asked for.
	settling = 90 * time.Second
	// An idle server allocates less than idleBytes in idlePeriod. It gives back what is free: left to itself, the collector would first let
	// the heap grow.
	idlePeriod = 30 * time.Second
	idleBytes  = 16 << 20
)

// nativeHistograms are a second form of each histogram, for a Prometheus that asks for it. They take 5 MB.
const nativeHistograms = metricsfeatures.NativeHistograms

// completeFeatures switches off what takes much memory and serves few, unless the user named it.
func (o *Options) completeFeatures() error {
	if o.Profile != profileEdge || o.named("feature-gates", string(nativeHistograms)) {
		return nil
	}
	return utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{string(nativeHistograms): false})
}

// tune sets the garbage collector. What a user says with Go's own GOGC counts more.
func (p Profile) tune() {
	if p != profileEdge {
		return
	}
	if _, given := os.LookupEnv("GOGC"); given {
		klog.InfoS("Profile edge: GOGC decides when garbage is collected")
		return
	}
	debug.SetGCPercent(edgeGCPercent)
	klog.InfoS("Profile edge: garbage is collected early", "percent", edgeGCPercent)
}

// settle gives back to the system, until ctx ends, what only the start needed once the server has been ready for a while, and then what is
// free whenever the server is idle.
func (p Profile) settle(ctx context.Context) {
	if p != profileEdge {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(settling):
	}
	debug.FreeOSMemory()
	if err := releaseProgram(); err != nil {
		klog.ErrorS(err, "Profile edge: cannot give the program's pages back")
	}
	before := allocated()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(idlePeriod):
			now := allocated()
			if now-before < idleBytes {
				debug.FreeOSMemory()
			}
			before = now
		}
	}
}

// allocated is how many bytes of heap this process has ever allocated.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
