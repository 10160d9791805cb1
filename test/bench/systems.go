package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/kubase/kubase/test/bench/process"
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
		if err := process.Build(ctx, ".", out, pkg); err != nil {
			return p, errors.Join(err, os.RemoveAll(dir))
		}
	}
	return p, nil
}

func systems(p programs, postgres string) []system {
	all := []system{
		{"etcd", func(dir string, port int) ([]string, error) {
			peer, err := process.FreePort()
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
			dsn, err := process.NewDatabase(postgres, "kubase")
			return []string{p.kubase, "etcd", "--datastore-dsn=" + dsn, listen(port)}, err
		}},
		system{"kine-postgres", func(_ string, port int) ([]string, error) {
			dsn, err := process.NewDatabase(postgres, "kine")
			return []string{p.kine, "--endpoint", dsn, "--listen-address", fmt.Sprintf("127.0.0.1:%d", port), "--metrics-bind-address", "0"}, err
		}})
}

func listen(port int) string { return fmt.Sprintf("--listen-client-urls=http://127.0.0.1:%d", port) }

// server is a running system.
type server struct {
	*process.Process
	endpoint string
}

// start runs a system until it answers.
func start(ctx context.Context, s system, dir string) (*server, error) {
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	args, err := s.args(dir, port)
	if err != nil {
		return nil, err
	}
	p, err := process.Start(ctx, dir, args...)
	if err != nil {
		return nil, err
	}
	srv := &server{p, fmt.Sprintf("http://127.0.0.1:%d", port)}
	client, err := srv.connect()
	if err != nil {
		srv.Stop()
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		if _, err = client.Get(ctx, "/ready"); err == nil {
			return srv, nil
		}
		if ctx.Err() != nil {
			srv.Stop()
			return nil, fmt.Errorf("not ready: %w", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *server) connect() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{s.endpoint}, DialTimeout: time.Minute, Logger: zap.NewNop()})
}
