// Package datastore opens the SQL store that --storage-backend and --datastore-dsn name and serves it as etcd v3.
package datastore

import (
	"context"
	"errors"
	"net"

	"github.com/spf13/pflag"
)

// Options is what a user says about the SQL datastore.
type Options struct {
	Backend string // sqlite or postgres
	DSN     string
	DSNFile string
	DataDir string // where the SQLite file goes when no DSN is given
	Listen  string
}

// AddFlags adds the datastore flags to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {}

// Validate returns every error of the options.
func (o *Options) Validate() []error { return nil }

// Datastore is an open store and the etcd v3 services in front of it.
type Datastore struct{}

// Open opens the store and starts serving it in process.
func Open(ctx context.Context, o Options) (*Datastore, error) { return nil, errors.New("placeholder") }

// DialContext returns an in-memory connection to the etcd v3 services; network and address are ignored.
func (d *Datastore) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return nil, errors.New("placeholder")
}

// Check says whether the datastore is usable: it answers, its schema is the one this program knows, its writer lives.
func (d *Datastore) Check(ctx context.Context) error { return errors.New("placeholder") }

// Close stops serving, then closes the store.
func (d *Datastore) Close() error { return nil }
