package datastore

import (
	"crypto/tls"
	"sync/atomic"

	"go.etcd.io/etcd/client/pkg/v3/transport"
)

// serverTLS reads the files again at each handshake, the CA of the clients too: certificates are renewed by replacing them. While they
// cannot be used, those that could last count.
func serverTLS(info transport.TLSInfo) (*tls.Config, error) {
	config, err := readTLS(info)
	if err != nil {
		return nil, err
	}
	var last atomic.Pointer[tls.Config]
	last.Store(config)
	reading := config.Clone()
	reading.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		if now, err := readTLS(info); err == nil {
			last.Store(now)
		}
		return last.Load(), nil
	}
	return reading, nil
}

// readTLS is what the files say now.
func readTLS(info transport.TLSInfo) (*tls.Config, error) {
	config, err := info.ServerConfig()
	if err != nil {
		return nil, err
	}
	certificate, err := tls.LoadX509KeyPair(info.CertFile, info.KeyFile)
	if err != nil {
		return nil, err
	}
	config.Certificates, config.GetCertificate = []tls.Certificate{certificate}, nil
	return config, nil
}
