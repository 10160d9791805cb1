package pki

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

type fixture struct {
	*testing.T
	path string
	now  time.Time
}

func newFixture(t *testing.T) *fixture {
	return &fixture{T: t, path: filepath.Join(t.TempDir(), "pki"), now: start}
}

func (f *fixture) open() *Dir {
	f.Helper()
	d, err := Open(f.path, func() time.Time { return f.now })
	if err != nil {
		f.Fatal(err)
	}
	return d
}

func (f *fixture) ca() *CA {
	f.Helper()
	ca, err := f.open().CA("ca", "test-ca")
	if err != nil {
		f.Fatal(err)
	}
	return ca
}

func (f *fixture) serving(names []string, ips ...net.IP) *x509.Certificate {
	f.Helper()
	pair, err := f.open().Certificate(f.ca(), "apiserver", Request{
		CommonName: "apiserver", DNSNames: names, IPs: ips, Usage: x509.ExtKeyUsageServerAuth,
	})
	if err != nil {
		f.Fatal(err)
	}
	if _, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile); err != nil {
		f.Fatal(err)
	}
	cert, err := readCertificate(pair.CertFile)
	if err != nil {
		f.Fatal(err)
	}
	return cert
}

func TestCertificatesAreBackdatedAnHour(t *testing.T) {
	f := newFixture(t)
	for _, cert := range []*x509.Certificate{f.ca().cert, f.serving([]string{"localhost"})} {
		if want := start.Add(-time.Hour); !cert.NotBefore.Equal(want) {
			t.Errorf("%s is valid from %s, want %s", cert.Subject, cert.NotBefore, want)
		}
	}
}

func TestServingCertificateVerifies(t *testing.T) {
	f := newFixture(t)
	cert := f.serving([]string{"localhost"}, net.ParseIP("127.0.0.1"), net.ParseIP("10.43.0.1"))
	roots := x509.NewCertPool()
	roots.AddCert(f.ca().cert)
	for _, host := range []string{"localhost", "127.0.0.1", "10.43.0.1"} {
		if _, err := cert.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: start}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	if _, err := cert.Verify(x509.VerifyOptions{DNSName: "example.com", Roots: roots, CurrentTime: start}); err == nil {
		t.Error("the certificate is valid for a name that nobody asked for")
	}
}

func TestCertificateIsKeptOrRenewed(t *testing.T) {
	names := []string{"localhost", "a"}
	for _, c := range []struct {
		name    string
		change  func(*fixture)
		names   []string
		renewed bool
	}{
		{name: "nothing changed", change: func(*fixture) {}, names: names},
		{name: "names in another order", change: func(*fixture) {}, names: []string{"a", "localhost"}},
		{name: "two thirds of its life left", change: func(f *fixture) { f.now = start.Add(certLifetime / 3) }, names: names},
		{name: "a third of its life left", change: func(f *fixture) { f.now = start.Add(2*certLifetime/3 + 2*backdate) }, names: names, renewed: true},
		{name: "expired", change: func(f *fixture) { f.now = start.Add(2 * certLifetime) }, names: names, renewed: true},
		{name: "the clock was in the future", change: func(f *fixture) { f.now = start.Add(-48 * time.Hour) }, names: names, renewed: true},
		{name: "a name was added", change: func(*fixture) {}, names: []string{"localhost", "a", "b"}, renewed: true},
		{name: "a name was removed", change: func(*fixture) {}, names: []string{"localhost"}, renewed: true},
		{name: "the key is gone", change: func(f *fixture) { os.Remove(filepath.Join(f.path, "apiserver.key")) }, names: names, renewed: true},
		{name: "the certificate is garbage", change: func(f *fixture) {
			os.WriteFile(filepath.Join(f.path, "apiserver.crt"), []byte("x"), 0o600)
		}, names: names, renewed: true},
		{name: "another authority", change: func(f *fixture) {
			os.Remove(filepath.Join(f.path, "ca.crt"))
			os.Remove(filepath.Join(f.path, "ca.key"))
		}, names: names, renewed: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			before := f.serving(names)
			c.change(f)
			after := f.serving(c.names)
			if renewed := !before.Equal(after); renewed != c.renewed {
				t.Errorf("renewed: %v, want %v", renewed, c.renewed)
			}
			if !sameSet(after.DNSNames, c.names) {
				t.Errorf("names %q, want %q", after.DNSNames, c.names)
			}
			if f.now.Before(after.NotBefore) || f.now.After(after.NotAfter) {
				t.Errorf("valid from %s to %s, but it is %s", after.NotBefore, after.NotAfter, f.now)
			}
		})
	}
}

func TestRenewedAuthorityKeepsItsKey(t *testing.T) {
	f := newFixture(t)
	old := f.ca()
	f.now = start.Add(caLifetime - certLifetime/2)
	leaf := f.serving([]string{"localhost"})
	renewed := f.ca()
	if old.cert.Equal(renewed.cert) {
		t.Fatal("the certificate authority was not renewed")
	}
	if !samePublicKey(old.cert.PublicKey, renewed.key) {
		t.Fatal("the renewed certificate authority has another key")
	}
	// A client that still trusts the old certificate accepts what the new one signed.
	roots := x509.NewCertPool()
	roots.AddCert(old.cert)
	if _, err := leaf.Verify(x509.VerifyOptions{DNSName: "localhost", Roots: roots, CurrentTime: f.now}); err != nil {
		t.Error(err)
	}
}

func TestAuthorityWithoutItsKeyIsAnError(t *testing.T) {
	f := newFixture(t)
	if err := os.Remove(f.ca().KeyFile); err != nil {
		t.Fatal(err)
	}
	if _, err := f.open().CA("ca", "test-ca"); err == nil {
		t.Error("a new authority replaced the old one without a word")
	}
}

func TestServiceAccountKeyIsMadeOnce(t *testing.T) {
	f := newFixture(t)
	path, err := f.open().ServiceAccountKey()
	if err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(path)
	f.now = start.Add(100 * certLifetime)
	if _, err := f.open().ServiceAccountKey(); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.ReadFile(path); !slices.Equal(before, after) || len(after) == 0 {
		t.Error("the key that signs service account tokens changed")
	}
}

func TestOnlyTheOwnerReads(t *testing.T) {
	f := newFixture(t)
	f.serving([]string{"localhost"})
	if _, err := f.open().ServiceAccountKey(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(f.path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v %v, want 0700", info.Mode(), err)
	}
	entries, err := os.ReadDir(f.path)
	if err != nil || len(entries) != 5 {
		t.Fatalf("%d files (%v), want 5", len(entries), err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v, want 0600", e.Name(), info.Mode(), err)
		}
	}
}

func TestKubeconfig(t *testing.T) {
	f := newFixture(t)
	ca := f.ca()
	pair, err := f.open().Certificate(ca, "admin", Request{CommonName: "admin", Usage: x509.ExtKeyUsageClientAuth})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(f.path, "admin.kubeconfig")
	k := Kubeconfig{Server: "https://127.0.0.1:6443", CAFile: ca.CertFile, User: "admin", UserPair: pair}
	for _, server := range []string{"https://127.0.0.1:6443", "https://127.0.0.1:7443"} {
		k.Server = server
		if err := k.Write(path); err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			t.Fatal(err)
		}
		if config.Host != server {
			t.Errorf("server %q, want %q", config.Host, server)
		}
		if _, err := tls.X509KeyPair(config.CertData, config.KeyData); err != nil {
			t.Error(err)
		}
	}
}
