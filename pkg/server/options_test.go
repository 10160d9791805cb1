package server

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"github.com/kubase/kubase/pkg/server/lifecycle"
)

// TestFlagsAreUpstreams compares every flag with the one that the module of kube-apiserver defines: same section, same name,
// same default, and the same help where the flag does the same.
func TestFlagsAreUpstreams(t *testing.T) {
	upstream := options.NewServerRunOptions().Flags()
	for _, c := range []struct {
		name      string
		ours      cliflag.NamedFlagSets
		lifecycle string
		defaults  map[string]string // that differ
	}{
		{"kube-apiserver", NewKubeAPIServerOptions().Flags(), "off", nil},
		{"kubase apiserver", NewOptions().Flags(), "auto", map[string]string{
			"bind-address":                            "127.0.0.1",
			"shutdown-send-retry-after":               "true",
			"shutdown-watch-termination-grace-period": "2s",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if want := append(slices.Clone(upstream.Order), "datastore", "lifecycle", "profile"); !slices.Equal(c.ours.Order, want) {
				t.Errorf("sections %q, want %q", c.ours.Order, want)
			}
			for _, section := range upstream.Order {
				ours, theirs := c.ours.FlagSet(section), upstream.FlagSets[section]
				theirs.VisitAll(func(want *pflag.Flag) {
					got := ours.Lookup(want.Name)
					if got == nil {
						t.Errorf("--%s is missing in section %q", want.Name, section)
						return
					}
					value := want.DefValue
					if differs, ok := c.defaults[want.Name]; ok {
						value = differs
					}
					if got.Value.String() != value || got.Value.Type() != want.Value.Type() {
						t.Errorf("--%s is %s %q, want %s %q", want.Name, got.Value.Type(), got.Value, want.Value.Type(), value)
					}
					if got.Usage != want.Usage && want.Name != "storage-backend" {
						t.Errorf("--%s says %q, want %q", want.Name, got.Usage, want.Usage)
					}
					if got.Deprecated != want.Deprecated || got.Hidden != want.Hidden || got.Shorthand != want.Shorthand {
						t.Errorf("--%s differs in how it is shown", want.Name)
					}
				})
				ours.VisitAll(func(f *pflag.Flag) {
					if theirs.Lookup(f.Name) == nil {
						t.Errorf("--%s is not one of kube-apiserver's, it belongs in a section of ours", f.Name)
					}
				})
			}
			if c.ours.FlagSet("datastore").Lookup("data-dir") == nil {
				t.Error("--data-dir is missing")
			}
			if got := c.ours.FlagSet("lifecycle").Lookup("lifecycle-controllers").DefValue; got != c.lifecycle {
				t.Errorf("--lifecycle-controllers is %s, want %s", got, c.lifecycle)
			}
			if got := c.ours.FlagSet("profile").Lookup("profile").DefValue; got != "standard" {
				t.Errorf("--profile is %s, want standard", got)
			}
		})
	}
}

// complete completes options as if a command line gave args.
func complete(t *testing.T, o *Options, args ...string) (CompletedOptions, error) {
	t.Helper()
	flags := o.Flags()
	all := pflag.NewFlagSet("test", pflag.ContinueOnError)
	for _, fs := range flags.FlagSets {
		all.AddFlagSet(fs)
	}
	if err := all.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o.Complete(context.Background())
}

func mustComplete(t *testing.T, o *Options, args ...string) CompletedOptions {
	t.Helper()
	completed, err := complete(t, o, args...)
	if err != nil {
		t.Fatal(err)
	}
	return completed
}

func TestNothingConfigured(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	o := mustComplete(t, NewOptions(), "--data-dir="+dir)

	check := func(what string, got, want any) {
		t.Helper()
		if got != want {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	check("SQL", o.usesSQL(), true)
	check("datastore backend", o.Datastore.Backend, "") // what the DSN says, and SQLite without one
	check("datastore directory", o.Datastore.DataDir, dir)
	check("etcd type", o.Etcd.StorageConfig.Type, "etcd3")
	check("server", o.ServerURL, "https://127.0.0.1:6443")
	check("kubeconfig", o.Kubeconfig, filepath.Join(dir, "admin.kubeconfig"))
	check("authorization", strings.Join(o.Authorization.Modes, ","), "Node,RBAC")
	check("anonymous for health only", o.anonymousHealthOnly, true)
	check("anonymous for all", o.Authentication.Anonymous.Allow, false)
	check("issuer", o.Authentication.ServiceAccounts.Issuers[0], defaultIssuer)
	check("service range", o.PrimaryServiceClusterIPRange.String(), "10.43.0.0/16")
	check("advertised address", o.GenericServerRunOptions.AdvertiseAddress.String(), "127.0.0.1")
	check("bootstrap tokens", o.Authentication.BootstrapToken.Enable, true)
	check("admission", slices.Contains(o.Admission.GenericAdmission.EnablePlugins, "NodeRestriction"), true)
	check("lifecycle controllers", o.lifecycle, lifecycle.Auto)
	ca := filepath.Join(dir, "pki", "ca")
	check("their files", o.lifecycleFiles, lifecycle.Files{
		RootCA: ca + ".crt", SigningCert: ca + ".crt", SigningKey: ca + ".key", ServiceAccountKey: filepath.Join(dir, "pki", "sa.key"),
	})
	check("reconciler", o.EndpointReconcilerType, string(reconcilers.NoneEndpointReconcilerType))
	for _, file := range []string{
		o.SecureServing.ServerCert.CertKey.CertFile, o.SecureServing.ServerCert.CertKey.KeyFile,
		o.Authentication.ClientCert.ClientCA, o.Authentication.ServiceAccounts.KeyFiles[0], o.ServiceAccountSigningKeyFile,
		o.KubeletConfig.TLSClientConfig.CertFile, o.KubeletConfig.TLSClientConfig.KeyFile,
		o.ProxyClientCertFile, o.ProxyClientKeyFile, o.Authentication.RequestHeader.ClientCAFile, o.Kubeconfig,
	} {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%q: %v, want a file that only its owner reads", file, err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s: %v, want a directory that only its owner enters", dir, err)
	}
	if o.Authentication.RequestHeader.ClientCAFile == o.Authentication.ClientCert.ClientCA {
		t.Error("any client could speak in the name of any user: the front proxy has the authority of clients")
	}

	cert := parseCertificate(t, o.SecureServing.ServerCert.CertKey.CertFile)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"localhost", host, "127.0.0.1", "::1", "10.43.0.1", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"} {
		if err := cert.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
}

func parseCertificate(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestSecondStartKeepsFiles(t *testing.T) {
	dir := t.TempDir()
	read := func() map[string]string {
		mustComplete(t, NewOptions(), "--data-dir="+dir)
		files := map[string]string{}
		err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
			if err != nil || info.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			files[path] = string(data)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	first, second := read(), read()
	for path := range first {
		if first[path] != second[path] {
			t.Errorf("%s changed", path)
		}
	}
	if len(first) != 20 || len(second) != 20 {
		t.Errorf("%d and then %d files, want 20", len(first), len(second))
	}
}

// TestUserFilesWin starts from the files of another directory, which stand for what a user brings.
func TestUserFilesWin(t *testing.T) {
	theirs := mustComplete(t, NewOptions(), "--data-dir="+t.TempDir())
	pki := filepath.Dir(theirs.Authentication.ClientCert.ClientCA)
	file := func(name string) string { return filepath.Join(pki, name) }
	groups := map[string][]string{ // what is given, and what therefore must not be made
		"serving":    {"--tls-cert-file=" + file("apiserver.crt"), "--tls-private-key-file=" + file("apiserver.key")},
		"client CA":  {"--client-ca-file=" + file("ca.crt")},
		"kubelet":    {"--kubelet-client-certificate=" + file("apiserver-kubelet-client.crt"), "--kubelet-client-key=" + file("apiserver-kubelet-client.key")},
		"tokens":     {"--service-account-key-file=" + file("sa.key"), "--service-account-signing-key-file=" + file("sa.key")},
		"aggregator": {"--requestheader-client-ca-file=" + file("front-proxy-ca.crt"), "--proxy-client-cert-file=" + file("front-proxy-client.crt"), "--proxy-client-key-file=" + file("front-proxy-client.key")},
	}
	made := map[string]string{
		"serving": "apiserver.crt", "client CA": "admin.crt", "kubelet": "apiserver-kubelet-client.crt", "tokens": "sa.key", "aggregator": "front-proxy-ca.crt",
	}
	for given, flags := range groups {
		t.Run(given, func(t *testing.T) {
			dir := t.TempDir()
			o := mustComplete(t, NewOptions(), append(flags, "--data-dir="+dir)...)
			for group, name := range made {
				_, err := os.Stat(filepath.Join(dir, "pki", name))
				if exists := err == nil; exists == (group == given) {
					t.Errorf("with flags for %s, %s was made: %v", given, name, exists)
				}
			}
			if wants := given != "client CA"; (o.Kubeconfig != "") != wants {
				t.Errorf("kubeconfig %q, want one: %v", o.Kubeconfig, wants)
			}
		})
	}
	t.Run("everything", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "never")
		args := []string{"--data-dir=" + dir}
		for _, flags := range groups {
			args = append(args, flags...)
		}
		o := mustComplete(t, NewKubeAPIServerOptions(), args...)
		if _, err := os.Stat(dir); err == nil {
			t.Error("the data directory was made, though nothing belongs in it")
		}
		if got := o.SecureServing.ServerCert.CertKey.CertFile; got != file("apiserver.crt") {
			t.Errorf("serving certificate %q", got)
		}
	})
}

func TestUserFlagsWin(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name  string
		args  []string
		check func(CompletedOptions) bool
	}{
		{"port", []string{"--secure-port=7443"}, func(o CompletedOptions) bool { return o.ServerURL == "https://127.0.0.1:7443" }},
		{"every address", []string{"--bind-address=0.0.0.0", "--advertise-address=192.0.2.1"}, func(o CompletedOptions) bool {
			return o.ServerURL == "https://127.0.0.1:6443" && o.GenericServerRunOptions.AdvertiseAddress.String() == "192.0.2.1" &&
				o.EndpointReconcilerType == string(reconcilers.LeaseEndpointReconcilerType) &&
				parseCertificate(t, o.SecureServing.ServerCert.CertKey.CertFile).VerifyHostname("192.0.2.1") == nil
		}},
		{"one address", []string{"--bind-address=::1"}, func(o CompletedOptions) bool { return o.ServerURL == "https://[::1]:6443" }},
		{"external host name", []string{"--external-hostname=api.example.com"}, func(o CompletedOptions) bool {
			return parseCertificate(t, o.SecureServing.ServerCert.CertKey.CertFile).VerifyHostname("api.example.com") == nil
		}},
		{"reconciler", []string{"--endpoint-reconciler-type=lease"}, func(o CompletedOptions) bool { return o.EndpointReconcilerType == "lease" }},
		{"authorization", []string{"--authorization-mode=RBAC"}, func(o CompletedOptions) bool { return slices.Equal(o.Authorization.Modes, []string{"RBAC"}) }},
		{"anonymous", []string{"--anonymous-auth=true"}, func(o CompletedOptions) bool { return o.Authentication.Anonymous.Allow && !o.anonymousHealthOnly }},
		{"no anonymous", []string{"--anonymous-auth=false"}, func(o CompletedOptions) bool { return !o.Authentication.Anonymous.Allow && !o.anonymousHealthOnly }},
		{"issuer", []string{"--service-account-issuer=https://example.com"}, func(o CompletedOptions) bool {
			return slices.Equal(o.Authentication.ServiceAccounts.Issuers, []string{"https://example.com"})
		}},
		{"service range", []string{"--service-cluster-ip-range=10.0.0.0/24"}, func(o CompletedOptions) bool { return o.APIServerServiceIP.Equal(net.IPv4(10, 0, 0, 1)) }},
		{"certificate directory", []string{"--cert-dir=" + dir}, func(o CompletedOptions) bool {
			return o.SecureServing.ServerCert.CertKey.CertFile == filepath.Join(dir, "apiserver.crt")
		}},
		{"etcd servers mean etcd", []string{"--etcd-servers=http://192.0.2.1:2379"}, func(o CompletedOptions) bool {
			return !o.usesSQL() && slices.Equal(o.Etcd.StorageConfig.Transport.ServerList, []string{"http://192.0.2.1:2379"})
		}},
		{"postgres", []string{"--storage-backend=postgres"}, func(o CompletedOptions) bool { return o.usesSQL() && o.Datastore.Backend == "postgres" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !c.check(mustComplete(t, NewOptions(), append(c.args, "--data-dir="+t.TempDir())...)) {
				t.Errorf("%q did not do what it says", c.args)
			}
		})
	}
}

// In the place of kube-apiserver the defaults of kube-apiserver's flags hold: what joins its cluster depends on them.
func TestInPlaceOfKubeAPIServer(t *testing.T) {
	o := mustComplete(t, NewKubeAPIServerOptions(), "--data-dir="+t.TempDir(), "--advertise-address=192.0.2.1")
	if !o.SecureServing.BindAddress.IsUnspecified() {
		t.Errorf("listens on %s, want every address", o.SecureServing.BindAddress)
	}
	if !o.Authentication.Anonymous.Allow || o.anonymousHealthOnly {
		t.Error("anonymous requests must reach authorization: a node that joins reads the public cluster-info")
	}
	if !slices.Equal(o.Authorization.Modes, []string{"Node", "RBAC"}) {
		t.Errorf("authorization %q", o.Authorization.Modes)
	}
}

func TestValidateReportsEverything(t *testing.T) {
	o := mustComplete(t, NewOptions(), "--data-dir="+t.TempDir(), "--storage-backend=mysql", "--etcd-servers=http://192.0.2.1:2379",
		"--secure-port=0", "--max-requests-inflight=-1", "--apiserver-count=0", "--profile=tiny")
	var all []string
	for _, err := range o.Validate() {
		all = append(all, err.Error())
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("more than a line: %q", err)
		}
	}
	for _, want := range []string{`--storage-backend "mysql"`, "--secure-port 0", "--max-requests-inflight", "--apiserver-count",
		`--profile "tiny" is unknown, it can be standard or edge`} {
		if !slices.ContainsFunc(all, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("nothing about %s in %q", want, all)
		}
	}
}

func TestFlagsOfAnotherBackend(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--storage-backend=sqlite", "--etcd-servers=http://192.0.2.1:2379"}, "--etcd-servers is for --storage-backend=etcd3, not for a SQL database"},
		{[]string{"--etcd-cafile=ca.crt"}, "--etcd-cafile is for --storage-backend=etcd3, not for a SQL database"},
		{[]string{"--etcd-servers=http://192.0.2.1:2379", "--datastore-dsn=postgres://192.0.2.1/x"}, "--datastore-dsn is for a SQL database, not for --storage-backend=etcd3"},
		{[]string{"--storage-backend=postgres", "--datastore-dsn=sqlite:///x"}, "--storage-backend is postgres, but the DSN is for sqlite"},
	} {
		errs := mustComplete(t, NewOptions(), append(c.args, "--data-dir="+t.TempDir())...).Validate()
		if len(errs) != 1 || errs[0].Error() != c.want {
			t.Errorf("%q: got %q, want %q", c.args, errs, c.want)
		}
	}
}

func TestDSNIsNeverShown(t *testing.T) {
	o := NewOptions()
	mustComplete(t, o, "--data-dir="+t.TempDir(), "--storage-backend=postgres", "--datastore-dsn=postgres://user:xyzzy@192.0.2.1/x")
	if !strings.Contains(o.Datastore.DSN, "xyzzy") {
		t.Fatalf("the DSN is %q", o.Datastore.DSN)
	}
	for _, fs := range o.flags.FlagSets {
		fs.VisitAll(func(f *pflag.Flag) {
			if strings.Contains(f.Value.String(), "xyzzy") {
				t.Errorf("--%s shows %q", f.Name, f.Value)
			}
		})
	}
}

// An authority that cannot be used is an error wherever in the order of the files it is met: a server that starts without it locks its
// administrator out.
func TestUnusableAuthority(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"missing key":         func(pki string) error { return os.Remove(filepath.Join(pki, "ca.key")) },
		"damaged key":         func(pki string) error { return os.WriteFile(filepath.Join(pki, "ca.key"), []byte("x"), 0o600) },
		"damaged certificate": func(pki string) error { return os.WriteFile(filepath.Join(pki, "ca.crt"), []byte("x"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			mustComplete(t, NewOptions(), "--data-dir="+dir)
			if err := damage(filepath.Join(dir, "pki")); err != nil {
				t.Fatal(err)
			}
			if _, err := complete(t, NewOptions(), "--data-dir="+dir); err == nil || !strings.Contains(err.Error(), "ca.") {
				t.Errorf("got %v, want an error that names the file", err)
			}
		})
	}
}

func TestUnusableDataDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := complete(t, NewOptions(), "--data-dir="+filepath.Join(file, "data"))
	if err == nil || !strings.Contains(err.Error(), "--data-dir") || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v, want one line that names --data-dir", err)
	}
}
