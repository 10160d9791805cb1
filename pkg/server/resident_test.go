package server

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// resident is how many kB of files this process maps.
func resident(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(string(regexp.MustCompile(`RssFile:\s*(\d+) kB`).FindSubmatch(status)[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestReleaseProgram reads the whole program, as a start does in time, gives it back, and goes on.
func TestReleaseProgram(t *testing.T) {
	if err := adviseProgram(unix.MADV_POPULATE_READ); err != nil {
		t.Fatal(err)
	}
	before := resident(t)
	if err := releaseProgram(); err != nil {
		t.Fatal(err)
	}
	if after := resident(t); after > before*3/4 {
		t.Errorf("%d kB of files were resident, %d still are", before, after)
	}
}
