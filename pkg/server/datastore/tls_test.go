package datastore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/etcd/client/pkg/v3/transport"

	"github.com/kubase/kubase/pkg/server/pki"
)

// authority is a CA with a certificate for a server of a name and one for a client.
type authority struct {
	roots   *x509.CertPool
	ca      string
	serving pki.Pair
	client  tls.Certificate
}

func newAuthority(t *testing.T, server string) authority {
	t.Helper()
	dir, err := pki.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := dir.CA("ca", "test")
	if err != nil {
		t.Fatal(err)
	}
	serving, err := dir.Certificate(ca, "server", pki.Request{CommonName: server, DNSNames: []string{server}, Usage: x509.ExtKeyUsageServerAuth})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := dir.Certificate(ca, "client", pki.Request{CommonName: "client", Usage: x509.ExtKeyUsageClientAuth})
	if err != nil {
		t.Fatal(err)
	}
	client, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(ca.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return authority{roots: roots, ca: ca.CertFile, serving: serving, client: client}
}

// install puts the authority's files where the server reads them.
func (a authority) install(t *testing.T, info transport.TLSInfo) {
	t.Helper()
	for from, to := range map[string]string{a.ca: info.TrustedCAFile, a.serving.CertFile: info.CertFile, a.serving.KeyFile: info.KeyFile} {
		data, err := os.ReadFile(from)
		if err == nil {
			err = pki.WriteFile(to, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// connect says hello to the server and expects its answer.
func (a authority) connect(address string, trusting authority) error {
	conn, err := tls.Dial("tcp", address, &tls.Config{
		RootCAs: trusting.roots, ServerName: "etcd", Certificates: []tls.Certificate{a.client}, NextProtos: []string{"h2"},
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := io.ReadAll(conn)
	if err == nil && string(answer) != "hello" {
		err = errors.New("no answer")
	}
	return err
}

func TestCertificatesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	info := transport.TLSInfo{
		CertFile: filepath.Join(dir, "server.crt"), KeyFile: filepath.Join(dir, "server.key"), TrustedCAFile: filepath.Join(dir, "ca.crt"),
		ClientCertAuth: true,
	}
	before, after := newAuthority(t, "etcd"), newAuthority(t, "etcd")
	before.install(t, info)
	config, err := serverTLS(info)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = tls.Server(conn, config).Write([]byte("hello")) // what fails here the client sees
			}()
		}
	}()
	address := listener.Addr().String()
	expect := func(when string, good, bad authority) {
		t.Helper()
		if err := good.connect(address, good); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		if err := bad.connect(address, good); err == nil {
			t.Errorf("%s: a client of another CA is let in", when)
		}
		if err := good.connect(address, bad); err == nil {
			t.Errorf("%s: the server has a certificate of another CA", when)
		}
	}
	expect("at the start", before, after)
	after.install(t, info)
	expect("after new files", after, before)
	for _, file := range []string{info.CertFile, info.TrustedCAFile} {
		if err := os.WriteFile(file, []byte("half a certif"), 0o600); err != nil {
			t.Fatal(err)
		}
		expect("while a file is damaged, with what was read last", after, before)
	}
	before.install(t, info)
	expect("after the old files again", before, after)
}
