package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	certificateBlock = "CERTIFICATE"
	privateKeyBlock  = "PRIVATE KEY"
)

// WriteFile replaces the file at path, so that a reader, or a crash, finds either the old content or the new one.
// Only the owner can read what it writes.
func WriteFile(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // nothing is left to remove after the rename
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

func writeCertificate(path string, der []byte) error {
	return WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: der}))
}

func writeKey(path string, key crypto.Signer) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: privateKeyBlock, Bytes: der}))
}

// readCertificate returns nil and no error for a file that does not exist.
func readCertificate(path string) (*x509.Certificate, error) {
	der, err := readPEM(path, certificateBlock)
	if der == nil || err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("%s is not a certificate: %w", path, err)
	}
	return cert, nil
}

// readKey returns nil and no error for a file that does not exist.
func readKey(path string) (crypto.Signer, error) {
	der, err := readPEM(path, privateKeyBlock)
	if der == nil || err != nil {
		return nil, err
	}
	if err := ownerOnly(path, 0o600); err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("%s is not a private key: %w", path, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s holds a %T, which cannot sign", path, key)
	}
	return signer, nil
}

// ownerOnly takes away what others may do with a file or directory; a copy or a restored backup may have let them.
func ownerOnly(path string, mode fs.FileMode) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&^mode == 0 {
		return nil
	}
	return os.Chmod(path, mode)
}

func readPEM(path, blockType string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != blockType {
		return nil, fmt.Errorf("%s does not begin with a PEM block %q", path, blockType)
	}
	return block.Bytes, nil
}

func newKey() (crypto.Signer, error) {
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

// newTokenKey returns an RSA key: not every party that verifies service account tokens knows elliptic curves.
func newTokenKey() (crypto.Signer, error) {
	return rsa.GenerateKey(rand.Reader, 2048)
}
