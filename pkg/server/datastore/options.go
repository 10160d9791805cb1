package datastore

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// The kinds of database, as the values of --storage-backend and, with postgresql as another name, the schemes of a DSN.
const (
	backendSQLite   = "sqlite"
	backendPostgres = "postgres"
)

const (
	dsnVariable           = "KUBASE_DATASTORE_DSN"
	sqliteFile            = "kubase.db"
	defaultConnectTimeout = 30 * time.Second
	networkFilesystem     = "allow-network-filesystem"
)

// Options is what a user says about the SQL datastore. A DSN may hold a password: it is never printed.
type Options struct {
	// Backend is sqlite or postgres; empty: what the DSN's scheme says.
	Backend string
	DSN     string
	DSNFile string
	// DataDir is where the SQLite file goes when there is no DSN.
	DataDir        string
	ConnectTimeout time.Duration

	// Listen is where other processes find the etcd API: unix:///path or https://host:port. Empty: nowhere.
	Listen              string
	ListenCertFile      string
	ListenKeyFile       string
	ListenTrustedCAFile string
}

// AddFlags adds the flags that say where the data is.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.addDSNFlags(fs)
	fs.StringVar(&o.Listen, "datastore-listen", o.Listen,
		"Where other processes reach the SQL datastore by the etcd v3 API: unix:///path/to/socket, which only this user can open, or https://host:port with the three files below. Empty: nowhere.")
	fs.StringVar(&o.ListenCertFile, "datastore-listen-cert-file", o.ListenCertFile, "Server certificate for --datastore-listen.")
	fs.StringVar(&o.ListenKeyFile, "datastore-listen-key-file", o.ListenKeyFile, "Key of the server certificate for --datastore-listen.")
	fs.StringVar(&o.ListenTrustedCAFile, "datastore-listen-trusted-ca-file", o.ListenTrustedCAFile,
		"CA that must have signed the certificates of clients of --datastore-listen.")
}

func (o *Options) addDSNFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.DSN, "datastore-dsn", o.DSN,
		"Where the SQL datastore is: sqlite:///path/to/file or postgres://user:password@host:port/database. Also taken from the environment variable "+dsnVariable+".")
	fs.StringVar(&o.DSNFile, "datastore-dsn-file", o.DSNFile, "File that holds the DSN, so that a password is in no command line.")
	if o.ConnectTimeout == 0 {
		o.ConnectTimeout = defaultConnectTimeout
	}
	fs.DurationVar(&o.ConnectTimeout, "datastore-connect-timeout", o.ConnectTimeout, "How long to wait at start for a Postgres server that does not answer.")
}

// Validate returns every error of the options.
func (o *Options) Validate() []error {
	var errs []error
	if _, err := o.location(); err != nil {
		errs = append(errs, err)
	}
	if o.ConnectTimeout < 0 {
		errs = append(errs, errors.New("--datastore-connect-timeout must not be negative"))
	}
	if o.Listen == "" {
		return errs
	}
	u, err := url.Parse(o.Listen)
	switch {
	case err == nil && u.Scheme == "unix" && u.Path != "":
	case err == nil && u.Scheme == "https" && u.Host != "":
		if o.ListenCertFile == "" || o.ListenKeyFile == "" || o.ListenTrustedCAFile == "" {
			errs = append(errs, errors.New("--datastore-listen with https needs --datastore-listen-cert-file, --datastore-listen-key-file and --datastore-listen-trusted-ca-file"))
		}
	default:
		errs = append(errs, fmt.Errorf("--datastore-listen %q is neither unix:///path nor https://host:port", o.Listen))
	}
	return errs
}

// location is a DSN taken apart as far as needed to open it.
type location struct {
	backend                string
	path                   string // of the SQLite file
	allowNetworkFilesystem bool
	dsn                    string // of Postgres
}

func (o *Options) location() (location, error) {
	dsn, err := o.dsn()
	if err != nil {
		return location{}, err
	}
	if dsn == "" {
		if o.Backend == backendPostgres {
			return location{}, errors.New("the postgres backend needs a DSN: give --datastore-dsn=postgres://HOST/DATABASE, --datastore-dsn-file or " + dsnVariable)
		}
		if o.DataDir == "" {
			return location{}, errors.New("no datastore: give --datastore-dsn=sqlite:///PATH or --datastore-dsn=postgres://HOST/DATABASE")
		}
		return location{backend: backendSQLite, path: filepath.Join(o.DataDir, sqliteFile)}, nil
	}
	scheme, _, hasScheme := strings.Cut(dsn, ":")
	var l location
	switch {
	case scheme == backendSQLite:
		l, err = sqliteLocation(dsn)
	case scheme == backendPostgres || scheme == "postgresql":
		l = location{backend: backendPostgres, dsn: dsn}
	case o.Backend == backendPostgres && strings.Contains(dsn, "="): // libpq's other notation
		l = location{backend: backendPostgres, dsn: dsn}
	case hasScheme && !strings.ContainsAny(scheme, "/@= "):
		err = fmt.Errorf("the DSN's scheme %q is neither sqlite nor postgres", scheme)
	default:
		err = errors.New("the DSN has no scheme: it is sqlite:///PATH or postgres://HOST/DATABASE")
	}
	if err == nil && o.Backend != "" && o.Backend != l.backend {
		err = fmt.Errorf("--storage-backend is %s, but the DSN is for %s", o.Backend, l.backend)
	}
	return l, err
}

func sqliteLocation(dsn string) (location, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Host != "" {
		return location{}, errors.New("a SQLite DSN is sqlite:///absolute/path or sqlite:relative/path")
	}
	l := location{backend: backendSQLite, path: u.Path}
	if u.Opaque != "" {
		if l.path, err = url.PathUnescape(u.Opaque); err != nil {
			return location{}, errors.New("a SQLite DSN is sqlite:///absolute/path or sqlite:relative/path")
		}
	}
	if l.path == "" {
		return location{}, errors.New("the SQLite DSN names no file: sqlite:///absolute/path or sqlite:relative/path")
	}
	for name, values := range u.Query() {
		if name != networkFilesystem || values[0] != "true" {
			return location{}, fmt.Errorf("a SQLite DSN has no parameter %q but %s=true", name, networkFilesystem)
		}
		l.allowNetworkFilesystem = true
	}
	return l, nil
}

// dsn is the DSN from the flag, the file or the environment, in this order.
func (o *Options) dsn() (string, error) {
	switch {
	case o.DSN != "" && o.DSNFile != "":
		return "", errors.New("--datastore-dsn and --datastore-dsn-file exclude each other")
	case o.DSN != "":
		return o.DSN, nil
	case o.DSNFile != "":
		text, err := os.ReadFile(o.DSNFile)
		if err != nil {
			return "", fmt.Errorf("--datastore-dsn-file: %w", err)
		}
		dsn := strings.TrimSpace(string(text))
		if dsn == "" {
			return "", fmt.Errorf("--datastore-dsn-file: %s is empty", o.DSNFile)
		}
		return dsn, nil
	}
	return os.Getenv(dsnVariable), nil
}
