// Package process runs the programs that are measured.
package process

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is a running program. It ends with this one.
type Process struct{ cmd *exec.Cmd }

// Start runs a command line. What it says goes to a file in dir that is named after the program.
func Start(ctx context.Context, dir string, args ...string) (*Process, error) {
	program, err := filepath.Abs(args[0])
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, filepath.Base(program)+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, program, args[1:]...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &Process{cmd}, nil
}

// Stop kills it.
func (p *Process) Stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
}

// Memory is what the server has in memory, in MiB: all of it, and what is its own and not a file's, such as the program's, that the
// kernel can drop.
func (p *Process) Memory() (all, own float64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0
	}
	var size, resident, shared float64 // pages
	if _, err := fmt.Sscan(string(text), &size, &resident, &shared); err != nil {
		return 0, 0
	}
	mib := float64(os.Getpagesize()) / (1 << 20)
	return resident * mib, (resident - shared) * mib
}

// CPU is the processor time that the server has used.
func (p *Process) CPU() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), ") ") // the name may have spaces
	fields := strings.Fields(rest)
	user, uerr := strconv.ParseInt(fields[11], 10, 64)
	system, serr := strconv.ParseInt(fields[12], 10, 64)
	if uerr != nil || serr != nil {
		return 0
	}
	return time.Duration(user+system) * (time.Second / 100) // clock ticks, as proc(5) has them on Linux
}

// Build builds a program of a module, in whose directory it runs go.
func Build(ctx context.Context, module, out, pkg string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", out, pkg)
	cmd.Dir = module
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, text)
	}
	return nil
}

// NewDatabase makes an empty database on a Postgres server and returns its DSN.
func NewDatabase(dsn, name string) (string, error) {
	name = fmt.Sprintf("%s_%d", name, time.Now().UnixNano())
	if out, err := exec.Command("psql", dsn, "-qc", "CREATE DATABASE "+name).CombinedOutput(); err != nil {
		return "", fmt.Errorf("psql: %w\n%s", err, out)
	}
	head, query, _ := strings.Cut(dsn, "?")
	return head[:strings.LastIndex(head, "/")+1] + name + "?" + query, nil
}

// FreePort finds a TCP port on the loopback that nobody listens on.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
