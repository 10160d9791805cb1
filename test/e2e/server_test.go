package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// patience bounds every wait, so that a hang fails with a message. Nothing waits for it when all is well.
const patience = 90 * time.Second

// server is a running kubase.
type server struct {
	dir        string // its data directory
	kubeconfig string
	oldKubectl string // the kubectl to use with it if not that of the same release
	config     *rest.Config
	client     kubernetes.Interface
	process    *exec.Cmd
	log        *buffer
	ended      chan struct{} // closed when the process has ended with the error err
	err        error
}

// start runs `kubase apiserver` on a port of its own until it says that it is ready.
func start(t *testing.T, dir string, flags ...string) *server {
	t.Helper()
	s := launch(t, dir, flags...)
	out, err := s.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.begin(t)
	ready := make(chan struct{})
	go func() {
		defer func() { s.err = s.process.Wait(); close(s.ended) }()
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if strings.HasSuffix(lines.Text(), "is ready.") {
				close(ready)
			}
		}
	}()
	select {
	case <-ready:
	case <-s.ended:
		t.Fatalf("kubase ended before it was ready: %v\n%s", s.err, s.log)
	case <-time.After(patience):
		t.Fatalf("kubase is not ready after %s\n%s", patience, s.log)
	}
	if s.config, err = clientcmd.BuildConfigFromFlags("", s.kubeconfig); err != nil {
		t.Fatal(err)
	}
	s.config.QPS = -1 // the test must not wait for its own client
	if s.client, err = kubernetes.NewForConfig(s.config); err != nil {
		t.Fatal(err)
	}
	return s
}

// launch prepares the process.
func launch(t *testing.T, dir string, flags ...string) *server {
	t.Helper()
	s := &server{dir: dir, kubeconfig: filepath.Join(dir, "admin.kubeconfig"), log: &buffer{}, ended: make(chan struct{})}
	if !slices.ContainsFunc(flags, func(f string) bool { return strings.HasPrefix(f, "--secure-port=") }) {
		flags = append(flags, fmt.Sprintf("--secure-port=%d", freePort(t)))
	}
	s.process = exec.Command(kubase, append([]string{"apiserver", "--data-dir=" + dir}, flags...)...)
	s.process.Stderr = s.log
	return s
}

func (s *server) begin(t *testing.T) {
	t.Helper()
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.process.Process.Kill() // it may have ended
		<-s.ended
		if t.Failed() && s.log.String() != "" {
			t.Logf("log of kubase:\n%s", s.log)
		}
	})
}

// stop asks the server to end, as Ctrl-C does, and expects it to do so cleanly.
func (s *server) stop(t *testing.T) {
	t.Helper()
	if err := s.process.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.ended:
	case <-time.After(patience):
		t.Fatalf("kubase has not stopped after %s", patience)
	}
	if s.err != nil {
		t.Errorf("kubase stopped with %v\n%s", s.err, s.log)
	}
}

// kill ends the server without a chance to do anything.
func (s *server) kill(t *testing.T) {
	t.Helper()
	if err := s.process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.ended
}

// kubectl runs kubectl as the administrator and returns what it prints.
func (s *server) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return s.kubectlIn(t, "", args...)
}

// kubectlIn is kubectl with something on its standard input.
func (s *server) kubectlIn(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out, errs, err := s.tryKubectl(stdin, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s%s", strings.Join(args, " "), err, out, errs)
	}
	return out
}

// kubectlCommand is kubectl as the administrator, not yet started.
func (s *server) kubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, cmp.Or(s.oldKubectl, kubectl), append([]string{"--kubeconfig=" + s.kubeconfig}, args...)...)
	command.Env = append(command.Environ(), "HOME="+s.dir) // its discovery cache
	return command
}

func (s *server) tryKubectl(stdin string, args ...string) (out, errs string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	command := s.kubectlCommand(ctx, args...)
	command.Stdin = strings.NewReader(stdin)
	var outBuffer, errBuffer bytes.Buffer
	command.Stdout, command.Stderr = &outBuffer, &errBuffer
	err = command.Run()
	return outBuffer.String(), errBuffer.String(), err
}

// failure runs kubase with args, expects it to fail, and returns the lines it says.
func failure(t *testing.T, args ...string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, kubase, args...).CombinedOutput()
	var exit *exec.ExitError
	if ctx.Err() != nil || !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("kubase %s: %v (%v), want exit code 1\n%s", strings.Join(args, " "), err, ctx.Err(), out)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// buffer is a bytes.Buffer that a process can write while a test reads.
type buffer struct {
	mu     sync.Mutex // guards buffer
	buffer bytes.Buffer
}

var _ io.Writer = (*buffer)(nil)

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
