// Package robustness lets concurrent clients write, read and watch through `kubase etcd` while it is killed, cut off, stopped and starved,
// and then checks the history that they saw: it must be linearizable, nothing acknowledged may be missing, and every watcher must have
// got the log.
//
// A failing run is repeated with -seed, which fixes what the clients ask for and where the faults hit, not how the machine schedules it.
package robustness

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubase/kubase/test/postgrestest"
)

var (
	seedFlag     = flag.Uint64("seed", 0, "Seed of the clients and faults; 0: a random one, which is printed.")
	durationFlag = flag.Duration("duration", 4*time.Second, "How long the clients of a scenario work at least; its faults may take longer.")
)

// kubase is the program under test, built from this module.
var kubase string

func TestMain(m *testing.M) {
	flag.Parse()
	if *seedFlag == 0 {
		*seedFlag = rand.Uint64()
	}
	fmt.Printf("-seed=%d\n", *seedFlag)
	parallel := false
	flag.Visit(func(f *flag.Flag) { parallel = parallel || f.Name == "test.parallel" })
	if !parallel {
		// Scenarios spend most of their time waiting for timeouts and for each other's turn.
		if err := flag.Set("test.parallel", "4"); err != nil {
			panic(err)
		}
	}
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "kubase-robustness-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	kubase = filepath.Join(dir, "kubase")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", kubase, "github.com/kubase/kubase/cmd/kubase")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return 1, fmt.Errorf("cannot build kubase: %w", err)
	}
	return postgrestest.Run(m), nil
}
