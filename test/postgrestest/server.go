package postgrestest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Server is a Postgres server with its data in a temporary directory.
type Server struct {
	bin     string // directory of the programs
	dir     string
	port    int
	owner   *syscall.Credential // whom the server runs as; nil: as this process
	durable bool                // writes reach the disk
	tls     bool
	process *process // nil when stopped
}

// Start starts a server of the test's own, which ends with the test. Fault tests stop, kill and restart it.
func Start(tb testing.TB) *Server {
	tb.Helper()
	s, err := start(false)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.remove(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// WithDurableServer calls run with the DSN of a server whose commits reach the disk, as those of a server in production do: for
// measurements.
func WithDurableServer(run func(dsn string) error) (err error) {
	s, err := start(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.remove()) }()
	return run(s.DSN("postgres"))
}

// DSN is a URL for a database of this server.
func (s *Server) DSN(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.port, database)
}

// ServeTLS restarts the server as one that takes connections over TLS besides others, with a certificate and its key in PEM.
func (s *Server) ServeTLS(tb testing.TB, certificate, key []byte) {
	tb.Helper()
	for name, content := range map[string][]byte{"server.crt": certificate, "server.key": key} {
		path := filepath.Join(s.data(), name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			tb.Fatal(err)
		}
		if s.owner != nil {
			if err := os.Chown(path, int(s.owner.Uid), int(s.owner.Gid)); err != nil {
				tb.Fatal(err)
			}
		}
	}
	s.tls = true
	s.Stop(tb)
	s.Restart(tb)
}

// Port is where the server listens; it stays the same over restarts.
func (s *Server) Port() int { return s.port }

// Stop ends the server in good order: sessions are ended, nothing is left to recover.
func (s *Server) Stop(tb testing.TB) {
	tb.Helper()
	if err := s.stop(syscall.SIGINT); err != nil {
		tb.Fatal(err)
	}
}

// Kill ends the server as a crash would: sessions are cut off, and the next start recovers from the log.
func (s *Server) Kill(tb testing.TB) {
	tb.Helper()
	// SIGQUIT and not SIGKILL, which would leave the server's children behind.
	if err := s.stop(syscall.SIGQUIT); err != nil {
		tb.Fatal(err)
	}
}

// Restart starts a server that was stopped or killed, and returns when it accepts connections.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	if err := s.run(); err != nil {
		tb.Fatal(err)
	}
}

func (s *Server) running() bool { return s.process != nil }

func (s *Server) stop(sig syscall.Signal) error {
	if s.process == nil {
		return nil
	}
	err := s.process.end(sig)
	s.process = nil
	return err
}

func (s *Server) remove() error {
	return errors.Join(s.stop(syscall.SIGQUIT), os.RemoveAll(s.dir))
}

// start makes a data directory and starts a server on it.
func start(durable bool) (_ *Server, err error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, durable: durable}
	if s.dir, err = os.MkdirTemp("", "postgres-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.remove())
		}
	}()
	if os.Geteuid() == 0 {
		if s.owner, err = unprivileged(); err != nil {
			return nil, err
		}
		if err = os.Chown(s.dir, int(s.owner.Uid), int(s.owner.Gid)); err != nil {
			return nil, err
		}
	}
	initdb := exec.Command(filepath.Join(bin, "initdb"),
		"--no-sync", "-A", "trust", "-E", "UTF8", "--locale=C", "-U", "postgres", "-D", s.data())
	initdb.SysProcAttr = &syscall.SysProcAttr{Credential: s.owner}
	initdb.Dir = s.dir
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	// Between the choice of a free port and its use by the server somebody else may take it.
	for range 3 {
		if s.port, err = freePort(); err != nil {
			return nil, err
		}
		if err = s.run(); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// run starts the server and returns when it accepts connections.
func (s *Server) run() error {
	if s.process != nil {
		return errors.New("the Postgres of the test runs already")
	}
	settings := []string{
		"-D", s.data(), "-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=" + s.dir, "-c", "max_connections=200",
	}
	if s.durable {
		settings = append(settings, "-c", "shared_buffers=256MB")
	} else {
		// Crashes of the machine are not tested, so nothing needs to reach the disk.
		settings = append(settings, "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "shared_buffers=32MB")
	}
	if s.tls {
		settings = append(settings, "-c", "ssl=on")
	}
	cmd := exec.Command(filepath.Join(s.bin, "postgres"), settings...)
	cmd.Env = append(os.Environ(), "LC_ALL=C") // the message that says it is ready is looked for
	cmd.Dir = s.dir
	p, err := startProcess(cmd, s.owner)
	if err != nil {
		return fmt.Errorf("starting Postgres: %w", err)
	}
	timeout := time.NewTimer(time.Minute)
	defer timeout.Stop()
	select {
	case <-p.ready:
		s.process = p
		return nil
	case <-p.exited:
		return fmt.Errorf("the server ended while it started:\n%s", p.log())
	case <-timeout.C:
		return errors.Join(fmt.Errorf("the server did not start within a minute:\n%s", p.log()), p.end(syscall.SIGQUIT))
	}
}

// programs finds the directory of the server's programs; Debian does not put them in PATH.
func programs() (string, error) {
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return "", err
		}
		if dir := filepath.Dir(path); isFile(filepath.Join(dir, "initdb")) {
			return dir, nil
		}
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", errors.New("this test needs the programs of Postgres (postgres, initdb), which are neither in PATH nor in " +
			"/usr/lib/postgresql: `make test` installs them")
	}
	newest := slices.MaxFunc(found, func(a, b string) int { return major(a) - major(b) })
	return filepath.Dir(newest), nil
}

// major is the version in /usr/lib/postgresql/<version>/bin/initdb.
func major(path string) int {
	n, _ := strconv.Atoi(strings.Split(path, "/")[4]) // 0 for a name that is no number
	return n
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// unprivileged is a user to run the server as: Postgres refuses root.
func unprivileged() (*syscall.Credential, error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("the server does not run as root, and there is neither a user postgres nor a user nobody")
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}
