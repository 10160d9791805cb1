package datastore

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/test/postgrestest"
)

// TestPostgresOverTLS opens the datastore on a Postgres that it can trust, and not on one with another CA or another name.
func TestPostgresOverTLS(t *testing.T) {
	trusted := newAuthority(t, "localhost")
	server := postgrestest.Start(t)
	server.ServeTLS(t, content(t, trusted.serving.CertFile), content(t, trusted.serving.KeyFile))
	dsn := func(host, ca string) string {
		return fmt.Sprintf("postgres://postgres@%s:%d/postgres?sslmode=verify-full&sslrootcert=%s", host, server.Port(), ca)
	}

	d := openDatastore(t, Options{DSN: dsn("localhost", trusted.ca)})
	if _, err := d.store.Txn(t.Context(), &sqlstore.TxnRequest{Success: []sqlstore.Op{{Put: &sqlstore.PutRequest{Key: []byte("a")}}}}); err != nil {
		t.Fatal(err)
	}
	if encrypted, plain := server.Sessions(t, "kubase"); encrypted == 0 || plain != 0 {
		t.Errorf("%d sessions are encrypted, %d are not", encrypted, plain)
	}

	for what, c := range map[string]struct{ host, ca, reason string }{
		"another CA":   {"localhost", newAuthority(t, "localhost").ca, "certificate signed by unknown authority"},
		"another name": {"127.0.0.1", trusted.ca, "cannot validate certificate for 127.0.0.1"},
	} {
		began := time.Now()
		_, err := Open(t.Context(), Options{DSN: dsn(c.host, c.ca), ConnectTimeout: time.Minute})
		start := fmt.Sprintf("cannot open the datastore: cannot trust Postgres at %s:%d: ", c.host, server.Port())
		if err == nil || !strings.HasPrefix(err.Error(), start) || !strings.Contains(err.Error(), c.reason) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
		if time.Since(began) > 30*time.Second {
			t.Errorf("%s: it has waited for the server to change", what)
		}
	}
}

func content(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
