package robustness

import (
	"bufio"
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// server is a `kubase etcd` that can be killed and started again in the same place.
type server struct {
	dsn     string
	socket  string
	log     *buffer
	process *exec.Cmd
}

// newServer starts a server on a database, listening on a socket of its own.
func newServer(t *testing.T, dsn string) *server {
	t.Helper()
	s := &server{dsn: dsn, socket: filepath.Join(shortDir(t), "etcd"), log: &buffer{}}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.process.Process.Kill() // it has ended, unless the test failed
		_ = s.process.Wait()
		if t.Failed() {
			t.Logf("the server on %s said\n%s", s.endpoint(), s.log)
		}
	})
	return s
}

func (s *server) endpoint() string { return "unix://" + s.socket }

// start returns when clients can connect.
func (s *server) start() error {
	s.process = exec.Command(kubase, "etcd", "--datastore-dsn="+s.dsn, "--listen-client-urls="+s.endpoint())
	s.process.Stderr = s.log
	s.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := s.process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.process.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "kubase etcd is ready on ") {
		return fmt.Errorf("kubase etcd says %q (%v)\n%s", line, err, s.log)
	}
	return nil
}

// kill ends the server as a crash does.
func (s *server) kill() error {
	if err := s.process.Process.Kill(); err != nil {
		return err
	}
	if _, err := s.process.Process.Wait(); err != nil {
		return err
	}
	return nil
}

// stop ends the server as an init system does, and expects it to end cleanly.
func (s *server) stop() error {
	if err := s.process.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := s.process.Wait(); err != nil {
		return fmt.Errorf("kubase etcd ended with %w", err)
	}
	return nil
}

func (s *server) signal(sig syscall.Signal) error { return s.process.Process.Signal(sig) }

// buffer keeps the end of what a process says.
type buffer struct {
	mu   sync.Mutex // guards data
	data []byte
}

const keptLog = 16 << 10

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data = append(b.data, p...)
	if over := len(b.data) - keptLog; over > 0 {
		b.data = bytes.Clone(b.data[over:])
	}
	return len(p), nil
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.data)
}
