// Package server composes the API server: options, configuration, the chain of servers, and its run.
package server

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/kubase/kubase/pkg/server/datastore"
	"github.com/kubase/kubase/pkg/server/lifecycle"
	_ "github.com/kubase/kubase/pkg/server/version" // must be set before upstream's options read it
)

// The values of --storage-backend.
const (
	backendSQLite   = "sqlite"
	backendPostgres = "postgres"
	backendEtcd     = storagebackend.StorageTypeETCD3
)

// Options is everything a user can say: the options of kube-apiserver and a few of our own.
type Options struct {
	*options.ServerRunOptions

	StorageBackend string
	Datastore      datastore.Options
	DataDir        string
	// LifecycleControllers says when the controllers of package lifecycle run.
	LifecycleControllers lifecycle.Mode
	// Profile is the kind of machine that the server is tuned for.
	Profile Profile

	// standalone is what distinguishes `kubase apiserver` from kube-apiserver: flags whose default suits a cluster
	// that somebody set up have one that suits a server that somebody just started.
	standalone bool
	flags      cliflag.NamedFlagSets
}

// NewOptions returns the options of `kubase apiserver`: it listens on this machine only, lets anonymous requests see
// nothing but health and version, and ends open watches when it stops instead of waiting a minute for them.
func NewOptions() *Options {
	o := NewKubeAPIServerOptions()
	o.standalone = true
	o.LifecycleControllers = lifecycle.Auto
	o.SecureServing.BindAddress = net.IPv4(127, 0, 0, 1)
	o.GenericServerRunOptions.ShutdownSendRetryAfter = true
	o.GenericServerRunOptions.ShutdownWatchTerminationGracePeriod = 2 * time.Second
	return o
}

// NewKubeAPIServerOptions returns options whose flags have kube-apiserver's defaults, for whoever puts this program in its
// place. What kube-apiserver demands and its user did not say is filled in all the same.
func NewKubeAPIServerOptions() *Options {
	return &Options{ServerRunOptions: options.NewServerRunOptions(), DataDir: DefaultDataDir, LifecycleControllers: lifecycle.Off, Profile: profileStandard}
}

// Flags returns kube-apiserver's flags in kube-apiserver's sections, and the sections "datastore", "lifecycle" and "profile".
func (o *Options) Flags() cliflag.NamedFlagSets {
	o.flags = o.ServerRunOptions.Flags()

	fs := o.flags.FlagSet("datastore")
	o.Datastore.AddFlags(fs)
	dsn := fs.Lookup("datastore-dsn")
	dsn.Value = secretValue{dsn.Value}
	fs.StringVar(&o.DataDir, "data-dir", o.DataDir,
		"Directory for what the server makes when its user brings none: the SQLite database, keys and certificates, and admin.kubeconfig.")

	o.flags.FlagSet("lifecycle").Var((*stringValue)(&o.LifecycleControllers), "lifecycle-controllers",
		"Whether this server runs the controllers that clean up namespaces and owned objects and make what new namespaces, quotas and joining kubelets need. Options: 'auto' (unless a kube-controller-manager holds its lease), 'on', 'off'.")

	o.flags.FlagSet("profile").Var((*stringValue)(&o.Profile), "profile",
		"The machine that the server is tuned for. Options: 'standard', 'edge' (as little memory as possible: collects garbage early, gives memory back when idle, and leaves native histograms out of the metrics).")

	// The flag stays where users know it, but takes our backends too and keeps the answer apart from upstream's options,
	// which know etcd3 only.
	backend := o.flags.FlagSet("etcd").Lookup("storage-backend")
	backend.Usage = "The storage backend for persistence. Options: 'sqlite', 'postgres', 'etcd3'. If not specified, it is 'etcd3' with --etcd-servers, what --datastore-dsn says if there is one, and 'sqlite' otherwise."
	backend.Value = (*stringValue)(&o.StorageBackend)

	return o.flags
}

// given reports whether the user gave one of these flags.
func (o *Options) given(names ...string) bool {
	for _, fs := range o.flags.FlagSets {
		for _, name := range names {
			if f := fs.Lookup(name); f != nil && f.Changed {
				return true
			}
		}
	}
	return false
}

// named reports whether the user gave a flag with a value that names something.
func (o *Options) named(flag, name string) bool {
	for _, fs := range o.flags.FlagSets {
		if f := fs.Lookup(flag); f != nil && f.Changed {
			return strings.Contains(f.Value.String(), name)
		}
	}
	return false
}

// completedOptions has all that CompletedOptions promises.
type completedOptions struct {
	options.CompletedOptions

	Datastore datastore.Options
	// Kubeconfig is the file that lets the administrator in. It is empty if the user brought certificates that leave
	// nothing for us to sign with.
	Kubeconfig string
	// ServerURL is where a client on this machine finds the server.
	ServerURL string

	lifecycle      lifecycle.Mode
	lifecycleFiles lifecycle.Files
	profile        Profile

	storageBackend      string
	anonymousHealthOnly bool
	errs                []error // found on the way, reported by Validate
}

// CompletedOptions can only be made by Complete.
type CompletedOptions struct {
	*completedOptions
}

// Complete fills in what the user left open. It makes the keys and certificates that are missing.
func (o *Options) Complete(ctx context.Context) (CompletedOptions, error) {
	completed := &completedOptions{anonymousHealthOnly: o.standalone && !o.given("anonymous-auth", "authentication-config")}
	if err := o.completeFeatures(); err != nil {
		return CompletedOptions{}, err
	}
	o.completeAddresses()
	o.completeSecurity(completed.anonymousHealthOnly)
	completed.errs = o.completeStorage()
	f, err := o.completeFiles()
	if err != nil {
		return CompletedOptions{}, fmt.Errorf("cannot use the data directory %q, choose another with --data-dir: %w", o.DataDir, err)
	}
	upstream, err := o.ServerRunOptions.Complete(ctx)
	if err != nil {
		return CompletedOptions{}, err
	}
	completed.CompletedOptions = upstream
	completed.Datastore = o.Datastore
	completed.Kubeconfig = f.kubeconfig
	completed.ServerURL = o.serverURL()
	completed.storageBackend = o.StorageBackend
	completed.lifecycle, completed.lifecycleFiles = o.LifecycleControllers, f.lifecycle()
	completed.profile = o.Profile
	return CompletedOptions{completed}, nil
}

// Validate returns everything that is wrong with the options.
func (o CompletedOptions) Validate() []error {
	errs := slices.Clone(o.errs)
	if o.usesSQL() && len(errs) == 0 { // otherwise it would say the same in other words
		errs = append(errs, o.Datastore.Validate()...)
	}
	if modes := []lifecycle.Mode{lifecycle.Auto, lifecycle.On, lifecycle.Off}; !slices.Contains(modes, o.lifecycle) {
		errs = append(errs, fmt.Errorf("--lifecycle-controllers %q is unknown, it can be auto, on or off", o.lifecycle))
	}
	if profiles := []Profile{profileStandard, profileEdge}; !slices.Contains(profiles, o.profile) {
		errs = append(errs, fmt.Errorf("--profile %q is unknown, it can be standard or edge", o.profile))
	}
	return append(errs, o.CompletedOptions.Validate()...)
}

// usesSQL reports whether the objects are kept in a SQL database.
func (o *completedOptions) usesSQL() bool {
	return o.storageBackend != backendEtcd
}

// completeStorage decides the backend. Upstream's etcd options always say etcd3: with a SQL database they talk to our
// own etcd endpoint inside this process.
func (o *Options) completeStorage() []error {
	o.Etcd.StorageConfig.Type = storagebackend.StorageTypeETCD3
	if o.StorageBackend == "" && o.given("etcd-servers") {
		o.StorageBackend = backendEtcd
	}
	if o.StorageBackend == backendEtcd {
		return o.reject("is for a SQL database, not for --storage-backend="+backendEtcd, "datastore-dsn", "datastore-dsn-file", "datastore-listen")
	}
	o.Datastore.Backend = o.StorageBackend // if that is empty, the DSN says it
	o.Datastore.DataDir = o.DataDir
	o.Etcd.StorageConfig.Transport.ServerList = []string{datastoreEndpoint}
	if backends := []string{backendSQLite, backendPostgres, backendEtcd}; o.StorageBackend != "" && !slices.Contains(backends, o.StorageBackend) {
		return []error{fmt.Errorf("--storage-backend %q is unknown, it can be %s", o.StorageBackend, strings.Join(backends, ", "))}
	}
	return o.reject("is for --storage-backend="+backendEtcd+", not for a SQL database",
		"etcd-servers", "etcd-servers-overrides", "etcd-cafile", "etcd-certfile", "etcd-keyfile")
}

// reject returns an error for each of these flags that the user gave.
func (o *Options) reject(why string, names ...string) []error {
	var errs []error
	for _, name := range names {
		if o.given(name) {
			errs = append(errs, fmt.Errorf("--%s %s", name, why))
		}
	}
	return errs
}

// stringValue is the pflag.Value of a string.
type stringValue string

func (s *stringValue) Set(v string) error { *s = stringValue(v); return nil }
func (s *stringValue) String() string     { return string(*s) }
func (s *stringValue) Type() string       { return "string" }

// secretValue is a pflag.Value that is set and never shown: flags are logged, and served under /flagz.
type secretValue struct{ pflag.Value }

func (s secretValue) String() string {
	if s.Value.String() == "" {
		return ""
	}
	return "(secret)"
}
