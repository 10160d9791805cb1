// Package version says which kubase this is and which Kubernetes it is made of.
//
// Kubernetes keeps its version in unexported variables of k8s.io/component-base/version, which its release build
// fills with -ldflags. A plain `go build` leaves them empty, and then /version, the build_info metric, user agents and
// the storage of API versions all believe in v0.0.0. So this package fills them when the program starts: whoever builds
// kubase, and however, gets the same answer.
package version

import (
	"fmt"
	"runtime/debug"
	"strings"
	_ "unsafe" // for go:linkname

	baseversion "k8s.io/component-base/version"
)

const (
	// Kubernetes is the release whose modules go.mod pins; a test compares the two.
	Kubernetes = "v1.37.2"
	// Kubase is our own version on top of it.
	Kubase = "0.1.0"
)

// The linker sets these two: -X github.com/kubase/kubase/pkg/server/version.commit=... and .date=...
// What it leaves empty is taken from the build information that the go command records.
var (
	commit string
	date   string
)

//go:linkname gitVersion k8s.io/component-base/version.gitVersion
var gitVersion string

//go:linkname gitMajor k8s.io/component-base/version.gitMajor
var gitMajor string

//go:linkname gitMinor k8s.io/component-base/version.gitMinor
var gitMinor string

//go:linkname gitCommit k8s.io/component-base/version.gitCommit
var gitCommit string

//go:linkname gitTreeState k8s.io/component-base/version.gitTreeState
var gitTreeState string

//go:linkname buildDate k8s.io/component-base/version.buildDate
var buildDate string

// String is the version of the program in semantic form: the Kubernetes release, with ours as build metadata, so that
// clients compare it as the Kubernetes it is.
func String() string {
	return Kubernetes + "+kubase." + Kubase
}

func init() {
	treeState := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision" && commit == "":
				commit = s.Value
			case s.Key == "vcs.time" && date == "":
				date = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				treeState = "dirty"
			case s.Key == "vcs.modified":
				treeState = "clean"
			}
		}
	}
	gitVersion = String()
	gitMajor, gitMinor, _ = strings.Cut(strings.TrimPrefix(baseversion.DefaultKubeBinaryVersion, "v"), ".")
	gitCommit, gitTreeState = commit, treeState
	if date != "" {
		buildDate = date
	}
	// The package copied gitVersion before it was set here.
	if err := baseversion.SetDynamicVersion(gitVersion); err != nil {
		panic(fmt.Sprintf("kubase: the version %q of this build is not valid: %v", gitVersion, err))
	}
}
