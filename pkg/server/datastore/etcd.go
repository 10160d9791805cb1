package datastore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"golang.org/x/crypto/bcrypt"

	"github.com/kubase/kubase/pkg/etcdshim"
)

// EtcdOptions is what a user of `kubase etcd` says. The flags have etcd's names where etcd has them.
type EtcdOptions struct {
	Datastore Options

	Name                string
	ListenClientURLs    []string
	AdvertiseClientURLs []string
	ListenMetricsURLs   []string

	CertFile       string
	KeyFile        string
	TrustedCAFile  string
	ClientCertAuth bool

	AuthToken    string
	AuthTokenTTL int // seconds
	BcryptCost   int

	WatchProgressNotifyInterval time.Duration
	QuotaBackendBytes           int64
	MaxRequestBytes             int
	MaxTxnOps                   int
	MaxConcurrentStreams        uint32
	GRPCKeepaliveMinTime        time.Duration
	GRPCKeepaliveInterval       time.Duration
	GRPCKeepaliveTimeout        time.Duration
}

// NewEtcdOptions returns etcd's defaults.
func NewEtcdOptions() *EtcdOptions {
	return &EtcdOptions{
		Name:                        "default",
		ListenClientURLs:            []string{"http://localhost:2379"},
		AuthToken:                   "simple",
		AuthTokenTTL:                300,
		BcryptCost:                  etcdshim.DefaultBcryptCost,
		WatchProgressNotifyInterval: 10 * time.Minute,
		MaxRequestBytes:             1536 << 10,
		MaxTxnOps:                   128,
		MaxConcurrentStreams:        math.MaxUint32,
		GRPCKeepaliveMinTime:        5 * time.Second,
		GRPCKeepaliveInterval:       2 * time.Hour,
		GRPCKeepaliveTimeout:        20 * time.Second,
	}
}

// AddFlags adds all flags of `kubase etcd`.
func (o *EtcdOptions) AddFlags(fs *pflag.FlagSet) {
	o.Datastore.addDSNFlags(fs)
	fs.StringVar(&o.Name, "name", o.Name, "Name that the member list shows.")
	fs.StringSliceVar(&o.ListenClientURLs, "listen-client-urls", o.ListenClientURLs, "URLs to serve the etcd v3 API on: http, https or unix.")
	fs.StringSliceVar(&o.AdvertiseClientURLs, "advertise-client-urls", o.AdvertiseClientURLs, "URLs that the member list shows. Default: those of --listen-client-urls.")
	fs.StringSliceVar(&o.ListenMetricsURLs, "listen-metrics-urls", o.ListenMetricsURLs, "URLs to serve /metrics, /livez, /readyz and /health on, without authentication.")
	fs.StringVar(&o.CertFile, "cert-file", o.CertFile, "Server certificate for https URLs. Read again at each handshake.")
	fs.StringVar(&o.KeyFile, "key-file", o.KeyFile, "Key of the server certificate. Read again at each handshake.")
	fs.StringVar(&o.TrustedCAFile, "trusted-ca-file", o.TrustedCAFile, "CA that signs the certificates of clients.")
	fs.BoolVar(&o.ClientCertAuth, "client-cert-auth", o.ClientCertAuth, "Only let clients in whose certificate the CA of --trusted-ca-file signed.")
	fs.StringVar(&o.AuthToken, "auth-token", o.AuthToken, "Kind of token that users get: simple, or jwt with etcd's options.")
	fs.IntVar(&o.AuthTokenTTL, "auth-token-ttl", o.AuthTokenTTL, "How many seconds a simple token is good after its last use.")
	fs.IntVar(&o.BcryptCost, "bcrypt-cost", o.BcryptCost, "Cost of hashing a password, from 4 to 31.")
	fs.DurationVar(&o.WatchProgressNotifyInterval, "watch-progress-notify-interval", o.WatchProgressNotifyInterval, "How often a watch without events hears of progress, if it asked for that.")
	fs.Int64Var(&o.QuotaBackendBytes, "quota-backend-bytes", o.QuotaBackendBytes, "Size of the data in bytes from which on the alarm NOSPACE is raised and writes are refused. 0 or less: no quota.")
	fs.IntVar(&o.MaxRequestBytes, "max-request-bytes", o.MaxRequestBytes, "Largest request in bytes.")
	fs.Uint32Var(&o.MaxConcurrentStreams, "max-concurrent-streams", o.MaxConcurrentStreams, "Most calls and streams that a client connection may have open.")
	fs.DurationVar(&o.GRPCKeepaliveMinTime, "grpc-keepalive-min-time", o.GRPCKeepaliveMinTime, "A client that pings more often than this is cut off.")
	fs.DurationVar(&o.GRPCKeepaliveInterval, "grpc-keepalive-interval", o.GRPCKeepaliveInterval, "How often a silent client is pinged. 0: never.")
	fs.DurationVar(&o.GRPCKeepaliveTimeout, "grpc-keepalive-timeout", o.GRPCKeepaliveTimeout, "How long a client may take to answer a ping. 0: clients are not pinged.")
	fs.IntVar(&o.MaxTxnOps, "max-txn-ops", o.MaxTxnOps, "Most operations in a transaction.")
}

// Validate returns every error of the options.
func (o *EtcdOptions) Validate() []error {
	errs := o.Datastore.Validate()
	if len(o.ListenClientURLs) == 0 {
		errs = append(errs, errors.New("--listen-client-urls is empty"))
	}
	for _, list := range []struct {
		flag string
		urls []string
	}{{"--listen-client-urls", o.ListenClientURLs}, {"--listen-metrics-urls", o.ListenMetricsURLs}} {
		for _, text := range list.urls {
			if err := o.validateURL(text); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", list.flag, err))
			}
		}
	}
	for _, text := range o.AdvertiseClientURLs {
		if _, err := parseURL(text); err != nil {
			errs = append(errs, fmt.Errorf("--advertise-client-urls: %w", err))
		}
	}
	if o.ClientCertAuth && o.TrustedCAFile == "" {
		errs = append(errs, errors.New("--client-cert-auth needs --trusted-ca-file"))
	}
	if o.WatchProgressNotifyInterval < minProgressInterval {
		errs = append(errs, fmt.Errorf("--watch-progress-notify-interval must be at least %s", minProgressInterval))
	}
	if o.MaxConcurrentStreams == 0 {
		errs = append(errs, errors.New("--max-concurrent-streams must be above 0"))
	}
	if o.GRPCKeepaliveMinTime < 0 || o.GRPCKeepaliveInterval < 0 || o.GRPCKeepaliveTimeout < 0 {
		errs = append(errs, errors.New("--grpc-keepalive-min-time, --grpc-keepalive-interval and --grpc-keepalive-timeout must not be negative"))
	}
	if o.AuthTokenTTL <= 0 {
		errs = append(errs, errors.New("--auth-token-ttl must be above 0"))
	}
	if o.BcryptCost < bcrypt.MinCost || o.BcryptCost > bcrypt.MaxCost {
		errs = append(errs, fmt.Errorf("--bcrypt-cost must be from %d to %d", bcrypt.MinCost, bcrypt.MaxCost))
	}
	if o.MaxRequestBytes <= 0 || o.MaxTxnOps <= 0 {
		errs = append(errs, errors.New("--max-request-bytes and --max-txn-ops must be above 0"))
	}
	return errs
}

// minProgressInterval is etcd's lower bound.
const minProgressInterval = 100 * time.Millisecond

func (o *EtcdOptions) validateURL(text string) error {
	u, err := parseURL(text)
	if err == nil && u.Scheme == "https" && (o.CertFile == "" || o.KeyFile == "") {
		err = fmt.Errorf("%s needs --cert-file and --key-file", text)
	}
	return err
}

func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err == nil && u.Scheme == "unix" && u.Host == "" && u.Path != "":
		return u, nil
	case err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Port() != "" && u.Path == "":
		return u, nil
	}
	return nil, fmt.Errorf("%q is none of http://host:port, https://host:port and unix:///path", text)
}

// RunEtcd serves the etcd v3 API alone until ctx ends. It calls ready once, when clients can connect.
func RunEtcd(ctx context.Context, o *EtcdOptions, ready func()) (err error) {
	log := slog.Default()
	o.Datastore.DataDir = "" // there is no default place: the DSN says it
	store, where, err := openStore(ctx, o.Datastore, log)
	if err != nil {
		return err
	}
	d := &Datastore{store: store, location: where, metrics: grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram()), log: log}
	defer func() { err = errors.Join(err, d.Close()) }()

	if err := d.openAuth(ctx, etcdshim.AuthOptions{
		Token: o.AuthToken, TokenTTL: time.Duration(o.AuthTokenTTL) * time.Second, BcryptCost: o.BcryptCost,
	}); err != nil {
		return err
	}
	options := etcdshim.Options{
		Auth: d.auth, ClientCertAuth: o.ClientCertAuth,
		Name: o.Name, ClientURLs: o.AdvertiseClientURLs, MaxRequestBytes: o.MaxRequestBytes, MaxTxnOps: o.MaxTxnOps,
		QuotaBytes: o.QuotaBackendBytes, AlarmWhenFull: true, WatchProgressInterval: o.WatchProgressNotifyInterval,
		MaxConcurrentStreams: o.MaxConcurrentStreams, KeepaliveMinTime: o.GRPCKeepaliveMinTime,
		KeepaliveInterval: o.GRPCKeepaliveInterval, KeepaliveTimeout: o.GRPCKeepaliveTimeout,
	}
	if len(options.ClientURLs) == 0 {
		options.ClientURLs = o.ListenClientURLs
	}
	for _, text := range o.ListenClientURLs {
		if err := d.serveURL(ctx, text, o, options); err != nil {
			return fmt.Errorf("cannot serve on %s: %w", text, err)
		}
	}
	for _, text := range o.ListenMetricsURLs {
		stop, err := d.serveMetrics(ctx, text, o)
		if err != nil {
			return fmt.Errorf("cannot serve metrics on %s: %w", text, err)
		}
		defer stop()
	}
	ready()
	<-ctx.Done()
	return nil
}

func (d *Datastore) serveURL(ctx context.Context, text string, o *EtcdOptions, options etcdshim.Options) error {
	u, err := url.Parse(text)
	if err != nil {
		return err
	}
	if u.Scheme == "https" {
		if options.TLS, err = serverTLS(o.tls()); err != nil {
			return err
		}
	}
	if u.Scheme == "http" && o.ClientCertAuth {
		d.log.Warn("no certificate is asked for on an http URL, whatever --client-cert-auth says", "url", text)
	}
	listener, err := listenOn(ctx, u)
	if err != nil {
		return err
	}
	d.serve(listener, options)
	return nil
}

func (o *EtcdOptions) tls() transport.TLSInfo {
	return transport.TLSInfo{CertFile: o.CertFile, KeyFile: o.KeyFile, TrustedCAFile: o.TrustedCAFile, ClientCertAuth: o.ClientCertAuth}
}

// serveMetrics serves /metrics and the health endpoints, and returns what stops it.
func (d *Datastore) serveMetrics(ctx context.Context, text string, o *EtcdOptions) (stop func(), err error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	listener, err := listenOn(ctx, u)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "https" {
		config, err := serverTLS(o.tls())
		if err != nil {
			return nil, errors.Join(err, listener.Close())
		}
		listener = tls.NewListener(listener, config)
	}
	server := &http.Server{Handler: d.metricsHandler(), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			d.log.Error("the metrics endpoint ended", "address", text, "error", err)
		}
	}()
	return func() { _ = server.Close() }, nil
}
