package sqlite_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// A test that needs a process of its own runs itself in a child, which finds the database's path in this variable.
const childVariable = "SQLITE_TEST_DATABASE"

// child starts the running test in a process of its own.
func child(t *testing.T, path string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), childVariable+"="+path)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended, or is to
		_ = cmd.Wait()
	})
	return cmd, bufio.NewScanner(out)
}

// acknowledgement is a line of the child's output that counts its writes.
func acknowledgement(out *bufio.Scanner) (n int, ok bool) {
	for out.Scan() {
		if text, found := strings.CutPrefix(out.Text(), "acknowledged "); found {
			n, err := strconv.Atoi(text)
			return n, err == nil
		}
	}
	return 0, false
}

// TestKill9 kills a process while it writes: the file is refused to others while it lives, and nothing it acknowledged is lost (I9).
func TestKill9(t *testing.T) {
	if path := os.Getenv(childVariable); path != "" {
		store, err := sqlstore.Open(t.Context(), openEngine(t, path), sqlstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for n := 0; ; n++ {
			put(t, store, strconv.Itoa(n), "v")
			fmt.Printf("acknowledged %d\n", n)
		}
	}
	path := filepath.Join(t.TempDir(), "kubase.db")
	cmd, out := child(t, path)
	acknowledged := -1
	for acknowledged < 100 {
		n, ok := acknowledgement(out)
		if !ok {
			t.Fatal("the child has ended")
		}
		if n == 0 {
			refused(t, path, "in use by process "+strconv.Itoa(cmd.Process.Pid))
		}
		acknowledged = n
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for n, ok := acknowledgement(out); ok; n, ok = acknowledgement(out) {
		acknowledged = n // it had got so far
	}
	_ = cmd.Wait() // killed
	engine := openEngine(t, path)
	store, err := sqlstore.Open(t.Context(), engine, sqlstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for n := range acknowledged + 1 {
		res, err := store.Range(t.Context(), &sqlstore.RangeRequest{KeyRange: sqlstore.KeyRange{Key: []byte(strconv.Itoa(n))}})
		if err != nil {
			t.Fatal(err)
		}
		if len(res.KVs) != 1 || res.KVs[0].ModRevision != sqlstore.Revision(n+2) {
			t.Fatalf("I9: write %d of %d acknowledged ones is not there: %v", n, acknowledged, res.KVs)
		}
	}
	if err := sqlstore.Verify(t.Context(), engine); err != nil {
		t.Error(err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

// TestDiskFull limits the size of files in a child: writes answer ErrNoSpace, reads go on, and so do writes once there is space.
func TestDiskFull(t *testing.T) {
	path := os.Getenv(childVariable)
	if path == "" {
		cmd, out := child(t, filepath.Join(t.TempDir(), "kubase.db"))
		passed := false
		for out.Scan() {
			t.Log(out.Text())
			passed = passed || out.Text() == "PASS"
		}
		if err := cmd.Wait(); err != nil || !passed {
			t.Errorf("the child: %v", err)
		}
		return
	}
	signal.Ignore(syscall.SIGXFSZ) // so that a write fails with EFBIG
	engine := openEngine(t, path)
	store, err := sqlstore.Open(t.Context(), engine, sqlstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	put(t, store, "a", "1")
	info, err := os.Stat(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	full := unix.Rlimit{Cur: uint64(info.Size()) + 64<<10, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &full); err != nil {
		t.Fatal(err)
	}
	writes := 1
	for err = error(nil); err == nil && writes < 100; writes++ {
		err = tryPut(t, store, "b", strings.Repeat("v", 10_000))
	}
	if !errors.Is(err, sqlstore.ErrNoSpace) {
		t.Fatalf("write %d answers %v", writes, err)
	}
	res, err := store.Range(t.Context(), &sqlstore.RangeRequest{KeyRange: sqlstore.KeyRange{Key: []byte("a")}})
	if err != nil || len(res.KVs) != 1 || res.Revision != sqlstore.Revision(writes) {
		t.Errorf("a read answers %+v, %v after %d writes", res, err, writes)
	}
	// An alarm that cannot be stored counts, and is stored when there is space.
	full.Cur = 1
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &full); err != nil {
		t.Fatal(err)
	}
	alarm := sqlstore.Alarm{Member: 7, Kind: sqlstore.AlarmNoSpace}
	if engine.PutAlarm(t.Context(), alarm) == nil {
		t.Error("an alarm was stored on a full disk")
	}
	store.RaiseAlarm(t.Context(), alarm)
	if alarms, err := store.Alarms(t.Context()); err != nil || !slices.Equal(alarms, []sqlstore.Alarm{alarm}) || !store.Alarmed(alarm.Kind) {
		t.Errorf("alarms are %v, %v", alarms, err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	put(t, store, "c", "1")
	stored, err := engine.Alarms(t.Context())
	for ; err == nil && len(stored) == 0 && t.Context().Err() == nil; stored, err = engine.Alarms(t.Context()) {
		runtime.Gosched()
	}
	if err != nil || stored[0] != alarm {
		t.Errorf("stored alarms are %v, %v", stored, err)
	}
	if err := sqlstore.Verify(t.Context(), engine); err != nil {
		t.Error(err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}
