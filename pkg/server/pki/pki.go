// Package pki makes the keys and certificates that a server needs and its user did not bring.
//
// Everything lives in one directory, named as kubeadm names it. What is there and still good is used again; what is
// missing, about to expire, or made for other names is made anew.
package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	// backdate makes a certificate valid before it is issued: the clocks of a new cluster rarely agree, and a device
	// that boots without one starts in the past.
	backdate = time.Hour

	caLifetime   = 10 * 365 * 24 * time.Hour
	certLifetime = 365 * 24 * time.Hour
)

// Dir is a directory of keys and certificates.
type Dir struct {
	path string
	now  func() time.Time
}

// Open returns the directory at path and creates it if need be. The clock is now, or the real one if now is nil.
func Open(path string, now func() time.Time) (*Dir, error) {
	if now == nil {
		now = time.Now
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	if err := ownerOnly(path, 0o700); err != nil {
		return nil, err
	}
	return &Dir{path: path, now: now}, nil
}

// Pair names the files of a certificate and its private key.
type Pair struct {
	CertFile, KeyFile string
}

// CA is a certificate authority.
type CA struct {
	Pair
	cert *x509.Certificate
	key  crypto.Signer
}

// Request says what a certificate is for.
type Request struct {
	CommonName    string
	Organizations []string
	DNSNames      []string
	IPs           []net.IP
	Usage         x509.ExtKeyUsage
}

// CA returns the certificate authority called name. Its key is made once and never changes, so a renewed CA certificate
// still verifies what the one before it signed, and the other way round.
func (d *Dir) CA(name, commonName string) (*CA, error) {
	ca := &CA{Pair: d.pair(name)}
	var err error
	if ca.key, err = readKey(ca.KeyFile); err != nil {
		return nil, err
	}
	if ca.cert, err = readCertificate(ca.CertFile); err != nil {
		return nil, err
	}
	if ca.key == nil && ca.cert != nil {
		return nil, fmt.Errorf("%s has no key: put back %s, or remove both to start a new authority", ca.CertFile, ca.KeyFile)
	}
	if ca.key == nil {
		if ca.key, err = newKey(); err != nil {
			return nil, err
		}
		if err := writeKey(ca.KeyFile, ca.key); err != nil {
			return nil, err
		}
	}
	if ca.cert != nil && d.fresh(ca.cert) && samePublicKey(ca.cert.PublicKey, ca.key) {
		return ca, nil
	}
	template := d.template(pkix.Name{CommonName: commonName}, caLifetime)
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, ca.key.Public(), ca.key)
	if err != nil {
		return nil, fmt.Errorf("cannot sign %s: %w", ca.CertFile, err)
	}
	if err := writeCertificate(ca.CertFile, der); err != nil {
		return nil, err
	}
	ca.cert, err = x509.ParseCertificate(der)
	return ca, err
}

// Certificate returns the certificate called name and its key: the one in the directory if ca signed it for the same
// names and it is fresh, a new one otherwise.
func (d *Dir) Certificate(ca *CA, name string, r Request) (Pair, error) {
	pair := d.pair(name)
	// A file that cannot be parsed is replaced like one that has expired: nothing depends on this key but this server.
	cert, certErr := readCertificate(pair.CertFile)
	key, keyErr := readKey(pair.KeyFile)
	if certErr == nil && keyErr == nil && cert != nil && key != nil &&
		samePublicKey(cert.PublicKey, key) && d.fresh(cert) && cert.CheckSignatureFrom(ca.cert) == nil && r.matches(cert) {
		return pair, nil
	}
	key, err := newKey()
	if err != nil {
		return pair, err
	}
	template := d.template(pkix.Name{CommonName: r.CommonName, Organization: r.Organizations}, certLifetime)
	template.DNSNames = r.DNSNames
	template.IPAddresses = r.IPs
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{r.Usage}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return pair, fmt.Errorf("cannot sign %s: %w", pair.CertFile, err)
	}
	if err := writeKey(pair.KeyFile, key); err != nil {
		return pair, err
	}
	return pair, writeCertificate(pair.CertFile, der)
}

// ServiceAccountKey returns the file of the key that signs service account tokens. It is made once: a new one would
// void every token.
func (d *Dir) ServiceAccountKey() (string, error) {
	path := filepath.Join(d.path, "sa.key")
	key, err := readKey(path)
	if err != nil || key != nil {
		return path, err
	}
	if key, err = newTokenKey(); err != nil {
		return path, err
	}
	return path, writeKey(path, key)
}

func (d *Dir) pair(name string) Pair {
	return Pair{CertFile: filepath.Join(d.path, name+".crt"), KeyFile: filepath.Join(d.path, name+".key")}
}

// fresh reports whether cert is valid and has more than a third of its life left.
func (d *Dir) fresh(cert *x509.Certificate) bool {
	now := d.now()
	lifetime := cert.NotAfter.Sub(cert.NotBefore)
	return !now.Before(cert.NotBefore) && cert.NotAfter.Sub(now) > lifetime/3
}

func (d *Dir) template(subject pkix.Name, lifetime time.Duration) *x509.Certificate {
	serial := make([]byte, 16)
	_, _ = rand.Read(serial) // never fails
	now := d.now()
	return &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(serial),
		Subject:      subject,
		NotBefore:    now.Add(-backdate),
		NotAfter:     now.Add(lifetime),
	}
}

// matches reports whether cert says what r asks for, no less and no more: a certificate for an address that this machine
// no longer has should not stay in use.
func (r Request) matches(cert *x509.Certificate) bool {
	return cert.Subject.CommonName == r.CommonName &&
		sameSet(cert.Subject.Organization, r.Organizations) &&
		sameSet(cert.DNSNames, r.DNSNames) &&
		sameSet(texts(cert.IPAddresses), texts(r.IPs)) &&
		slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{r.Usage})
}

func texts(ips []net.IP) []string {
	var out []string
	for _, ip := range ips {
		out = append(out, ip.String())
	}
	return out
}

func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}

func samePublicKey(public crypto.PublicKey, key crypto.Signer) bool {
	p, ok := public.(interface{ Equal(crypto.PublicKey) bool })
	return ok && p.Equal(key.Public())
}
