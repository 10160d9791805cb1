package postgrestest

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a running server.
type process struct {
	cmd    *exec.Cmd
	ready  chan struct{} // closed when it accepts connections
	exited chan struct{} // closed when it has ended

	mu    sync.Mutex // guards lines
	lines []string   // the end of its log
}

const keptLines = 50

func startProcess(cmd *exec.Cmd, owner *syscall.Credential) (*process, error) {
	p := &process{cmd: cmd, ready: make(chan struct{}), exited: make(chan struct{})}
	// The server must not outlive this process, however that ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: owner, Pdeathsig: syscall.SIGQUIT}
	out, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	go func() {
		// The kernel sends the signal when the thread that started the child ends, so this one lives as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.read(out)
		_ = cmd.Wait() // how it ended is in its log
		close(p.exited)
	}()
	return p, <-started
}

// read keeps the end of the log and notices that the server is ready.
func (p *process) read(out io.Reader) {
	ready := false
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		line := lines.Text()
		p.mu.Lock()
		p.lines = append(p.lines, line)
		p.lines = p.lines[max(0, len(p.lines)-keptLines):]
		p.mu.Unlock()
		if !ready && strings.Contains(line, "database system is ready to accept connections") {
			ready = true
			close(p.ready)
		}
	}
	_, _ = io.Copy(io.Discard, out) // after a line too long to scan
}

func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// end sends a signal and waits until the process is gone.
func (p *process) end(sig syscall.Signal) error {
	select {
	case <-p.exited: // its pid may be another's by now
		return nil
	default:
	}
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("stopping Postgres: %w", err)
	}
	timeout := time.NewTimer(time.Minute)
	defer timeout.Stop()
	select {
	case <-p.exited:
		return nil
	case <-timeout.C:
		return fmt.Errorf("the server did not stop within a minute of %v:\n%s", sig, p.log())
	}
}
