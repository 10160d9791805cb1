package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// system is a server that is measured.
type system struct {
	name string
	// args is the command line that serves the etcd API on 127.0.0.1:port with its data in dir.
	args func(dir string, port int) ([]string, error)
}

type programs struct {
	dir, kubase, etcd, kine string
}

// build builds the servers that kubase is compared with, from the modules that go.mod names.
func build(ctx context.Context, kubase string) (programs, error) {
	dir, err := os.MkdirTemp("", "kubase-bench-")
	if err != nil {
		return programs{}, err
	}
	p := programs{dir: dir, kubase: kubase, etcd: filepath.Join(dir, "etcd"), kine: filepath.Join(dir, "kine")}
	for out, pkg := range map[string]string{p.etcd: "go.etcd.io/etcd/server/v3", p.kine: "github.com/k3s-io/kine"} {
		cmd := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", out, pkg)
		if text, err := cmd.CombinedOutput(); err != nil {
			return p, errors.Join(fmt.Errorf("building %s: %w\n%s", pkg, err, text), os.RemoveAll(dir))
		}
	}
	return p, nil
}

func systems(p programs, postgres string) []system {
	all := []system{
		{"etcd", func(dir string, port int) ([]string, error) {
			peer, err := freePort()
			url := fmt.Sprintf("http://127.0.0.1:%d", port)
			return []string{
				p.etcd, "--data-dir", dir, "--log-level", "error", "--listen-client-urls", url, "--advertise-client-urls", url,
				"--listen-peer-urls", fmt.Sprintf("http://127.0.0.1:%d", peer), "--quota-backend-bytes", "8589934592",
			}, err
		}},
		{"kubase-sqlite", func(dir string, port int) ([]string, error) {
			return []string{p.kubase, "etcd", "--datastore-dsn=sqlite://" + filepath.Join(dir, "kubase.db"), listen(port)}, nil
		}},
		{"kine-sqlite", func(dir string, port int) ([]string, error) {
			return []string{p.kine, "--endpoint", "sqlite://" + filepath.Join(dir, "kine.db") + "?_journal=WAL&cache=shared&_busy_timeout=30000",
				"--listen-address", fmt.Sprintf("127.0.0.1:%d", port), "--metrics-bind-address", "0"}, nil
		}},
	}
	if postgres == "" {
		return all
	}
	return append(all,
		system{"kubase-postgres", func(_ string, port int) ([]string, error) {
			dsn, err := newDatabase(postgres, "kubase")
			return []string{p.kubase, "etcd", "--datastore-dsn=" + dsn, listen(port)}, err
		}},
		system{"kine-postgres", func(_ string, port int) ([]string, error) {
			dsn, err := newDatabase(postgres, "kine")
			return []string{p.kine, "--endpoint", dsn, "--listen-address", fmt.Sprintf("127.0.0.1:%d", port), "--metrics-bind-address", "0"}, err
		}})
}

func listen(port int) string { return fmt.Sprintf("--listen-client-urls=http://127.0.0.1:%d", port) }

// newDatabase makes an empty database and returns its DSN.
func newDatabase(dsn, name string) (string, error) {
	name = fmt.Sprintf("%s_%d", name, time.Now().UnixNano())
	if out, err := exec.Command("psql", dsn, "-qc", "CREATE DATABASE "+name).CombinedOutput(); err != nil {
		return "", fmt.Errorf("psql: %w\n%s", err, out)
	}
	head, query, _ := strings.Cut(dsn, "?")
	return head[:strings.LastIndex(head, "/")+1] + name + "?" + query, nil
}

// server is a running system.
type server struct {
	cmd      *exec.Cmd
	endpoint string
}

// start runs a system until it answers.
func start(ctx context.Context, s system, dir string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	args, err := s.args(dir, port)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	srv := &server{cmd: cmd, endpoint: fmt.Sprintf("http://127.0.0.1:%d", port)}
	client, err := srv.connect()
	if err != nil {
		return nil, errors.Join(err, srv.stop())
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		if _, err = client.Get(ctx, "/ready"); err == nil {
			return srv, nil
		}
		if ctx.Err() != nil {
			return nil, errors.Join(fmt.Errorf("not ready: %w", err), srv.stop())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *server) connect() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{s.endpoint}, DialTimeout: time.Minute, Logger: zap.NewNop()})
}

func (s *server) stop() error {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // it was killed
	return nil
}

// memory is what the server has in memory, in MiB: all of it, and what is its own and not a file's, such as the program's, that the
// kernel can drop.
func (s *server) memory() (all, own float64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.cmd.Process.Pid))
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

// cpu is the processor time that the server has used.
func (s *server) cpu() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
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

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
