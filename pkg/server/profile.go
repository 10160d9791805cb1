package server

import (
	"context"
	"os"
	"runtime/debug"
	"time"

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
	edgeGCPercent = 30
	// settling is how long after the server is ready its hooks and controllers have done what they do once, and package openapi has let go
	// what the aggregator asked for.
	settling = 90 * time.Second
)

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

// settle gives what only the start needed back to the system, once the server has been ready for a while.
func (p Profile) settle(ctx context.Context) {
	if p != profileEdge {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(settling):
		debug.FreeOSMemory()
	}
}
