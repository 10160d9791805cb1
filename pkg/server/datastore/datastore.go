// Package datastore opens the SQL store that --storage-backend and --datastore-dsn name and serves it as etcd v3: in process for
// the API server, and on the network for others.
package datastore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/kubase/kubase/pkg/etcdshim"
	"github.com/kubase/kubase/pkg/sqlstore"
)

const (
	// What is under way between the API server and the store in memory.
	memoryBuffer = 64 << 10
	// How long calls under way may take when the datastore is closed.
	shutdownTimeout = 5 * time.Second
)

// Datastore is an open store and the etcd v3 services in front of it.
type Datastore struct {
	store   *sqlstore.Store
	auth    *etcdshim.Auth // nil if only this process asks
	memory  *bufconn.Listener
	servers []*etcdshim.Server
	metrics *grpcprom.ServerMetrics
	log     *slog.Logger

	location location // where the data is
	asking   atomic.Pointer[question]
}

// Open opens the store, and starts serving it where Options.Listen says.
func Open(ctx context.Context, o Options) (*Datastore, error) {
	log := slog.Default()
	store, where, err := openStore(ctx, o, log)
	if err != nil {
		return nil, err
	}
	d := &Datastore{store: store, location: where, memory: bufconn.Listen(memoryBuffer), metrics: apiServerMetrics(), log: log}
	if o.Listen != "" {
		if err := d.listen(ctx, o); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

// ServeInProcess starts serving those who come through DialContext. They are trusted: users and roles are for the others. Their calls
// get spans from tracers, as children of their own; nil is no tracing.
func (d *Datastore) ServeInProcess(tracers trace.TracerProvider) {
	var options []grpc.ServerOption
	if tracers != nil {
		options = append(options, grpc.StatsHandler(otelgrpc.NewServerHandler(
			otelgrpc.WithTracerProvider(tracers), otelgrpc.WithPropagators(propagation.TraceContext{}))))
	}
	d.serve(d.memory, etcdshim.Options{Interceptors: options})
}

// listen serves other processes: over a socket that only this user can open, or over mutual TLS.
func (d *Datastore) listen(ctx context.Context, o Options) error {
	u, err := url.Parse(o.Listen)
	if err != nil {
		return err
	}
	if err := d.openAuth(ctx, etcdshim.AuthOptions{}); err != nil {
		return err
	}
	options := etcdshim.Options{Auth: d.auth, ClientCertAuth: true, ClientURLs: []string{o.Listen}, AlarmWhenFull: true}
	if u.Scheme == "https" {
		info := transport.TLSInfo{
			CertFile: o.ListenCertFile, KeyFile: o.ListenKeyFile, TrustedCAFile: o.ListenTrustedCAFile, ClientCertAuth: true,
		}
		if options.TLS, err = serverTLS(info); err != nil {
			return fmt.Errorf("--datastore-listen: %w", err)
		}
	}
	listener, err := listenOn(ctx, u)
	if err != nil {
		return fmt.Errorf("--datastore-listen: %w", err)
	}
	d.serve(listener, options)
	return nil
}

func (d *Datastore) openAuth(ctx context.Context, o etcdshim.AuthOptions) (err error) {
	if d.auth, err = etcdshim.NewAuth(ctx, d.store, o); err != nil {
		return fmt.Errorf("cannot set up authentication: %w", err)
	}
	return nil
}

// listenOn opens the listener of a URL with the scheme unix, http or https.
func listenOn(ctx context.Context, u *url.URL) (net.Listener, error) {
	var config net.ListenConfig
	if u.Scheme != "unix" {
		return config.Listen(ctx, "tcp", u.Host)
	}
	if err := removeDeadSocket(ctx, u.Path); err != nil {
		return nil, err
	}
	listener, err := config.Listen(ctx, "unix", u.Path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(u.Path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// removeDeadSocket removes a socket that a process which was killed left behind.
func removeDeadSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket", path)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(fmt.Errorf("%s is in use by another process", path), conn.Close())
	}
	return os.Remove(path)
}

// serve serves the store on a listener until Close.
func (d *Datastore) serve(listener net.Listener, options etcdshim.Options) {
	options.Logger = d.log
	options.Interceptors = append(interceptors(d.metrics), options.Interceptors...)
	server := etcdshim.NewServer(d.store, options)
	d.metrics.InitializeMetrics(server) // so that there is a 0 for what was not called yet
	d.servers = append(d.servers, server)
	go func() {
		if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			d.log.Error("the etcd API ended", "address", listener.Addr().String(), "error", err)
		}
	}()
}

// DialContext returns an in-memory connection to the etcd v3 services, once ServeInProcess was called; network and address are ignored.
func (d *Datastore) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	return d.memory.DialContext(ctx)
}

// Check says whether the datastore is usable: it answers, its schema is the one this program knows, its writer lives.
func (d *Datastore) Check(ctx context.Context) error { return d.store.Check(ctx) }

// Close stops serving, then closes the store.
func (d *Datastore) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	var stopping sync.WaitGroup
	for _, s := range d.servers {
		stopping.Go(func() { s.Shutdown(ctx) })
	}
	stopping.Wait()
	var err error
	if d.auth != nil {
		err = d.auth.Close()
	}
	return errors.Join(err, d.store.Close())
}
