package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubase/kubase/test/bench/process"
)

// system is an API server with its store.
type system struct {
	name string
	// start begins it in a directory, which has a directory pki of keys and certificates and an admin.kubeconfig, and returns its
	// processes and the API server's port.
	start func(ctx context.Context, dir string) ([]*process.Process, int, error)
	// keys has pki and admin.kubeconfig.
	keys string
}

// programs are what is measured, and keys that they share.
type programs struct {
	kubase, kubeAPIServer, etcd, kine, keys string
}

// build builds what kubase is compared with, from the modules that the two go.mod name, and makes keys.
func build(ctx context.Context, dir, kubase string) (programs, error) {
	p := programs{
		kubase: kubase, kubeAPIServer: filepath.Join(dir, "kube-apiserver"), etcd: filepath.Join(dir, "etcd"), kine: filepath.Join(dir, "kine"),
		keys: filepath.Join(dir, "keys"),
	}
	for _, b := range []struct{ module, out, pkg string }{
		{".", p.etcd, "go.etcd.io/etcd/server/v3"}, {".", p.kine, "github.com/k3s-io/kine"},
		{"../..", p.kubeAPIServer, "k8s.io/kubernetes/cmd/kube-apiserver"},
	} {
		if err := process.Build(ctx, b.module, b.out, b.pkg); err != nil {
			return p, err
		}
	}
	if err := os.Mkdir(p.keys, 0o700); err != nil {
		return p, err
	}
	s, port, err := startKubase(ctx, p, p.keys, "sqlite://"+filepath.Join(p.keys, "kubase.db"))
	if err != nil {
		return p, err
	}
	defer s.Stop()
	_, err = connect(ctx, p.keys, port)
	return p, err
}

func systems(p programs, postgres string) []system {
	all := []system{
		{"upstream-etcd", func(ctx context.Context, dir string) ([]*process.Process, int, error) {
			port, err := process.FreePort()
			if err != nil {
				return nil, 0, err
			}
			peer, err := process.FreePort()
			if err != nil {
				return nil, 0, err
			}
			url := fmt.Sprintf("http://127.0.0.1:%d", port)
			etcd, err := process.Start(ctx, dir, p.etcd, "--data-dir", filepath.Join(dir, "etcd"), "--log-level", "error",
				"--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", fmt.Sprintf("http://127.0.0.1:%d", peer))
			if err != nil {
				return nil, 0, err
			}
			return startUpstream(ctx, p, dir, url, etcd)
		}, p.keys},
		{"kubase-sqlite", func(ctx context.Context, dir string) ([]*process.Process, int, error) {
			s, port, err := startKubase(ctx, p, dir, "sqlite://"+filepath.Join(dir, "kubase.db"))
			return []*process.Process{s}, port, err
		}, ""},
	}
	if postgres == "" {
		return all
	}
	return append(all,
		system{"upstream-kine-postgres", func(ctx context.Context, dir string) ([]*process.Process, int, error) {
			dsn, err := process.NewDatabase(postgres, "kine")
			if err != nil {
				return nil, 0, err
			}
			port, err := process.FreePort()
			if err != nil {
				return nil, 0, err
			}
			address := fmt.Sprintf("127.0.0.1:%d", port)
			kine, err := process.Start(ctx, dir, p.kine, "--endpoint", dsn, "--listen-address", address, "--metrics-bind-address", "0")
			if err != nil {
				return nil, 0, err
			}
			return startUpstream(ctx, p, dir, "http://"+address, kine)
		}, p.keys},
		system{"kubase-postgres", func(ctx context.Context, dir string) ([]*process.Process, int, error) {
			dsn, err := process.NewDatabase(postgres, "kubase")
			if err != nil {
				return nil, 0, err
			}
			s, port, err := startKubase(ctx, p, dir, dsn)
			return []*process.Process{s}, port, err
		}, ""})
}

// startKubase starts the API server alone: upstream's has no controllers either.
func startKubase(ctx context.Context, p programs, dir, dsn string) (*process.Process, int, error) {
	port, err := process.FreePort()
	if err != nil {
		return nil, 0, err
	}
	s, err := process.Start(ctx, dir, p.kubase, "apiserver", "--data-dir="+dir, "--datastore-dsn="+dsn, "--lifecycle-controllers=off",
		fmt.Sprintf("--secure-port=%d", port), "--bind-address=127.0.0.1")
	return s, port, err
}

func startUpstream(ctx context.Context, p programs, dir, etcd string, store *process.Process) ([]*process.Process, int, error) {
	file := func(name string) string { return filepath.Join(p.keys, "pki", name) }
	port, err := process.FreePort()
	if err != nil {
		return nil, 0, err
	}
	s, err := process.Start(ctx, dir, p.kubeAPIServer,
		"--etcd-servers="+etcd, fmt.Sprintf("--secure-port=%d", port), "--bind-address=127.0.0.1", "--advertise-address=192.0.2.1",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--service-cluster-ip-range=10.96.0.0/16",
		"--client-ca-file="+file("ca.crt"), "--tls-cert-file="+file("apiserver.crt"), "--tls-private-key-file="+file("apiserver.key"),
		"--service-account-issuer=https://example.com", "--service-account-key-file="+file("sa.key"),
		"--service-account-signing-key-file="+file("sa.key"), "--allow-privileged=true")
	return []*process.Process{store, s}, port, err
}

// readyTimeout bounds a system's start.
const readyTimeout = 2 * time.Minute

// connect returns the configuration of an administrator's client of an API server that is ready.
func connect(ctx context.Context, keys string, port int) (*rest.Config, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		err := ready(ctx, keys, port)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("not ready: %w", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return config(keys, port)
}

func ready(ctx context.Context, keys string, port int) error {
	c, err := config(keys, port)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return err
	}
	return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

func config(keys string, port int) (*rest.Config, error) {
	c, err := clientcmd.BuildConfigFromFlags("", filepath.Join(keys, "admin.kubeconfig"))
	if err != nil {
		return nil, err
	}
	c.Host, c.QPS = fmt.Sprintf("https://127.0.0.1:%d", port), -1
	c.ContentType = "application/vnd.kubernetes.protobuf"
	return c, nil
}
