package postgrestest_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubase/kubase/test/postgrestest"
)

// childVariable makes a copy of this test binary start a server, print its port and wait for its end.
const childVariable = "POSTGRESTEST_CHILD"

func TestMain(m *testing.M) { os.Exit(postgrestest.Run(m)) }

func query[T any](t *testing.T, dsn, statement string) (v T) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.QueryRow(ctx, statement).Scan(&v); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(ctx); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestDatabasesAreSeparateAndDropped(t *testing.T) {
	var dropped string
	t.Run("inner", func(t *testing.T) {
		dropped = postgrestest.Database(t)
		query[any](t, dropped, "SELECT pg_notify('a', '')")
	})
	if conn, err := pgx.Connect(context.Background(), dropped); err == nil {
		_ = conn.Close(context.Background())
		t.Errorf("%s is still there after its test", dropped)
	}
	a, b := postgrestest.Database(t), postgrestest.Database(t)
	if a == b {
		t.Errorf("two calls gave one database: %s", a)
	}
}

func TestSchemasAreSeparateAndDropped(t *testing.T) {
	const exists = "SELECT count(*) FROM pg_tables WHERE tablename = 'a'"
	t.Run("inner", func(t *testing.T) {
		dsn := postgrestest.Schema(t)
		conn, err := pgx.Connect(context.Background(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(context.Background(), "CREATE TABLE a ()"); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if n := query[int](t, dsn, exists+" AND schemaname = current_schema()"); n != 1 {
			t.Error("the table is not in the schema")
		}
		if n := query[int](t, postgrestest.Schema(t), exists+" AND schemaname = current_schema()"); n != 0 {
			t.Error("the table is in another schema too")
		}
	})
	if n := query[int](t, postgrestest.Schema(t), exists); n != 0 {
		t.Error("the table is still there after its test")
	}
}

func TestICULocaleOrdersTextByLanguage(t *testing.T) {
	const order = "SELECT 'B' < 'a'" // true bytewise, false in English
	if !query[bool](t, postgrestest.Database(t), order) {
		t.Error("a plain database does not order text bytewise")
	}
	if query[bool](t, postgrestest.Database(t, postgrestest.WithICULocale("en-US")), order) {
		t.Error("a database with an ICU locale orders text bytewise")
	}
}

func TestServerKeepsItsDataOverStopAndKill(t *testing.T) {
	s := postgrestest.Start(t)
	dsn := s.DSN("postgres")
	if err := s.Exec("CREATE TABLE a AS SELECT 7 AS n"); err != nil {
		t.Fatal(err)
	}
	for _, end := range []func(testing.TB){s.Stop, s.Kill} {
		end(t)
		if _, err := pgx.Connect(context.Background(), dsn); err == nil {
			t.Fatal("the server answers although it was stopped")
		}
		s.Restart(t)
		if n := query[int](t, dsn, "SELECT n FROM a"); n != 7 {
			t.Errorf("after a restart: %d", n)
		}
	}
}

func TestServerDiesWithTheProcess(t *testing.T) {
	if os.Getenv(childVariable) != "" {
		s := postgrestest.Start(t)
		fmt.Printf("port %d\n", s.Port())
		select {}
	}
	// The killed child leaves its files behind. The server's user must be able to walk to them.
	dir, err := os.MkdirTemp("", "postgrestest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerDiesWithTheProcess$")
	cmd.Env = append(os.Environ(), childVariable+"=1", "TMPDIR="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	port := 0
	lines := bufio.NewScanner(out)
	for port == 0 && lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "port "); ok {
			if port, err = strconv.Atoi(text); err != nil {
				t.Fatal(err)
			}
		}
	}
	if port == 0 {
		t.Fatal("the child printed no port")
	}
	// A session ends when the server does.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	session, err := pgx.Connect(ctx, fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close(ctx) }() // it has ended
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	if _, err := session.WaitForNotification(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("the server goes on after its test process was killed: %v", err)
	}
}
