// Package postgrestest gives tests a private Postgres: one server for each test binary, started by the first test that asks, on a
// free port of the loopback interface, gone with the process. A package that uses it runs its tests with
//
//	func TestMain(m *testing.M) { os.Exit(postgrestest.Run(m)) }
//
// and each test takes a database of its own with [Database], or a server of its own with [Start] if it wants to stop it.
package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// shared is the server of this test binary.
var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// Run runs the tests and then stops and removes the shared server, if one was started. It returns the exit code.
func Run(m *testing.M) int {
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.remove(); err != nil {
			fmt.Println("removing the Postgres of the tests:", err)
			code = max(code, 1)
		}
	}
	return code
}

// Option changes how a database is made.
type Option func(*settings)

type settings struct {
	icuLocale string
}

// WithICULocale gives the database a collation of ICU, for example en-US, which needs no locale of the operating system.
func WithICULocale(locale string) Option { return func(s *settings) { s.icuLocale = locale } }

var databases atomic.Int64

// Database makes an empty database on the shared server and returns its DSN. It is dropped, with whoever is still connected, when
// the test ends.
func Database(tb testing.TB, options ...Option) string {
	tb.Helper()
	return sharedServer(tb).Database(tb, options...)
}

func sharedServer(tb testing.TB) *Server {
	tb.Helper()
	shared.once.Do(func() { shared.server, shared.err = start(false) })
	if shared.err != nil {
		tb.Fatal(shared.err)
	}
	return shared.server
}

// Database makes an empty database on this server and returns its DSN, as the function of this name does.
func (s *Server) Database(tb testing.TB, options ...Option) string {
	tb.Helper()
	var set settings
	for _, option := range options {
		option(&set)
	}
	name := fmt.Sprintf("test%d", databases.Add(1))
	create := "CREATE DATABASE " + name
	if set.icuLocale != "" {
		create += fmt.Sprintf(" LOCALE_PROVIDER icu ICU_LOCALE '%s' TEMPLATE template0", set.icuLocale)
	}
	if err := s.Exec(create); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		// A server that the test stopped takes its databases with it.
		if err := s.Exec("DROP DATABASE " + name + " WITH (FORCE)"); err != nil && s.running() {
			tb.Error(err)
		}
	})
	return s.DSN(name)
}

// Schema makes an empty schema in a database that it shares with others, and returns a DSN that finds only this schema. It takes less
// time than Database. The schema is dropped when the test ends.
func Schema(tb testing.TB) string {
	tb.Helper()
	server := sharedServer(tb)
	name := fmt.Sprintf("test%d", databases.Add(1))
	if err := server.Exec("CREATE SCHEMA " + name); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := server.Exec("DROP SCHEMA " + name + " CASCADE"); err != nil {
			tb.Error(err)
		}
	})
	return server.DSN("postgres") + "&search_path=" + name
}

// Exec runs one statement as the superuser, in the database postgres.
func (s *Server) Exec(statement string, args ...any) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	if _, err := conn.Exec(ctx, statement, args...); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

// Sessions counts the sessions of an application, by whether they are encrypted.
func (s *Server) Sessions(tb testing.TB, application string) (encrypted, plain int) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		tb.Fatal(err)
	}
	err = conn.QueryRow(ctx, `
SELECT count(*) FILTER (WHERE ssl), count(*) FILTER (WHERE NOT ssl)
FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE application_name = $1`, application).Scan(&encrypted, &plain)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		tb.Fatal(err)
	}
	return encrypted, plain
}
