package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// etcdctlCommands are run one after the other. LEASE stands for the id of the lease that was granted last, OTHER for the endpoint of
// another, empty etcd. What etcdctl says must be the same for kubase as for a real etcd.
var etcdctlCommands = []struct {
	args  string
	stdin string
}{
	{args: "put a 1"},
	{args: "put a 2 --prev-kv"},
	{args: "put b", stdin: "from stdin"},
	{args: "put b/1 x"},
	{args: "put c 3 -w json"},
	{args: "get a"},
	{args: "get a -w json"},
	{args: "get a -w fields"},
	{args: "get none"},
	{args: "get --prefix b"},
	{args: "get a c"},
	{args: "get --from-key b --keys-only"},
	{args: "get --prefix b --count-only -w fields"},
	{args: "get --prefix b --print-value-only"},
	{args: "get --from-key a --limit 2 -w json"},
	{args: "get --from-key a --sort-by MODIFY --order DESCEND"},
	{args: "get --from-key a --sort-by VALUE --order ASCEND"},
	{args: "get --from-key a --min-mod-rev 4 --max-create-rev 5 -w json"},
	{args: "get a --rev 2"},
	{args: "get a --rev 99"},
	{args: "get a --hex --consistency s"},
	{args: "put a 1 --ignore-value"},
	{args: "put a --ignore-value --prev-kv"},
	{args: "put none --ignore-value"},
	{args: "del b --prev-kv"},
	{args: "del --prefix b"},
	{args: "del none -w json"},
	{args: "txn", stdin: "value(\"a\") = \"2\"\nmod(\"c\") > \"1\"\n\nput d 4\nget a\ndel c\n\nput e 5\n\n"},
	{args: "txn -w json", stdin: "create(\"a\") = \"0\"\n\n\nget d\nput f 6\n\n"},
	{args: "txn", stdin: "\nput g 1\nput g 2\n\n\n"},
	{args: "endpoint hashkv -w json"},
	{args: "lease grant 100"},
	{args: "put leased 1 --lease=LEASE"},
	{args: "put leased 2 --ignore-lease"},
	{args: "lease timetolive LEASE --keys"},
	{args: "lease list"},
	{args: "lease keep-alive --once LEASE"},
	{args: "lease revoke LEASE"},
	{args: "lease revoke LEASE"},
	{args: "lease timetolive LEASE"},
	{args: "lease list"},
	{args: "get leased --prefix"},
	{args: "put leased 1 --lease=1234"},
	{args: "compaction 4"},
	{args: "compaction 4"},
	{args: "compaction 99"},
	{args: "get a --rev 3"},
	{args: "compaction 7 --physical"},
	{args: "endpoint hashkv --rev 9"},
	{args: "endpoint health"},
	{args: "endpoint health -w json"},
	{args: "endpoint status"},
	{args: "endpoint status -w json"},
	{args: "member list"},
	{args: "member list -w json"},
	{args: "alarm list"},
	{args: "alarm disarm"},
	{args: "defrag"},
	{args: "snapshot save FILE"},
	{args: "lock mutex echo in the lock"},
	{args: "lock mutex false"},
	{args: "get mutex --prefix"},

	{args: "auth status"},
	{args: "user add root:r"},
	{args: "user add root:r"},
	{args: "auth enable"},
	{args: "role add root"},
	{args: "user grant-role root root"},
	{args: "user add alice --interactive=false", stdin: "a\n"},
	{args: "user add cert --no-password"},
	{args: "role add app"},
	{args: "role grant-permission app readwrite app/ --prefix"},
	{args: "role grant-permission app read a"},
	{args: "role get app"},
	{args: "role list -w json"},
	{args: "user grant-role alice app"},
	{args: "user get alice"},
	{args: "user get alice --detail"},
	{args: "user list"},
	{args: "auth enable"},
	{args: "get a"},
	{args: "put a 1"},
	{args: "--user=alice:a get a"},
	{args: "--user=alice:a put a 1"},
	{args: "--user=alice:a put app/a 1"},
	{args: "--user=alice:wrong get a"},
	{args: "--user=alice:a get app/ --prefix"},
	{args: "--user=alice:a get a --from-key"},
	{args: "--user=alice:a user list"},
	{args: "--user=alice:a user get alice"},
	{args: "--user=alice:a lock app/lock echo in the lock"},
	{args: "--user=alice:a lock lock echo in the lock"},
	{args: "--user=alice:a endpoint status"},
	{args: "--user=alice:a endpoint hashkv"},
	{args: "--user=alice:a snapshot save FILE"},
	{args: "--user=alice:a compaction 8"},
	{args: "--user=root:r role revoke-permission app a"},
	{args: "--user=alice:a get a"},
	{args: "--user=root:r user passwd alice --interactive=false", stdin: "b\n"},
	{args: "--user=alice:b get app/a"},
	{args: "--user=root:r user revoke-role alice app"},
	{args: "--user=alice:b get app/a"},
	{args: "--user=root:r role delete app"},
	{args: "--user=root:r user delete alice"},
	{args: "--user=root:r user delete alice"},
	{args: "--user=root:r user delete root"},
	{args: "--user=root:r auth status -w json"},
	{args: "--user=root:r auth disable"},
	{args: "get a"},
	{args: "auth status"},
}

// TestEtcdctl runs etcdctl on a real etcd and on kubase.
func TestEtcdctl(t *testing.T) {
	t.Parallel()
	want := etcdctlSession(t, startEtcd(t))
	for name, dsn := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(want, etcdctlSession(t, serveEtcd(t, dsn(t)))); diff != "" {
				t.Errorf("etcdctl says (- on etcd, + on kubase):\n%s", diff)
			}
		})
	}
}

// serveEtcd runs `kubase etcd` and returns its URL.
func serveEtcd(t *testing.T, dsn string, flags ...string) string {
	t.Helper()
	address := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	startEtcdShim(t, append([]string{"--datastore-dsn=" + dsn, "--listen-client-urls=" + address}, flags...)...)
	return address
}

// etcdctlSession runs all commands and returns them and what each said.
func etcdctlSession(t *testing.T, endpoint string) []string {
	lease, file := "", filepath.Join(t.TempDir(), "snapshot.db")
	var said []string
	for _, c := range etcdctlCommands {
		args := strings.Fields(strings.NewReplacer("LEASE", lease, "FILE", file).Replace(c.args))
		out := runEtcdctl(t, endpoint, c.stdin, args...)
		if granted := leaseGranted.FindStringSubmatch(out); granted != nil {
			lease = granted[1]
		}
		out = strings.ReplaceAll(out, file, "FILE")
		said = append(said, "etcdctl "+c.args)
		said = append(said, strings.Split(anyEtcd(out, endpoint), "\n")...)
	}
	return said
}

var (
	leaseGranted = regexp.MustCompile(`lease ([0-9a-f]+) granted`)
	// What one etcd says differently from the next: ids, sizes, times, and what only raft knows.
	differences = []struct {
		pattern     *regexp.Regexp
		replacement string
	}{
		{regexp.MustCompile(`"(cluster_id|member_id|ID|leader|raft_term|raftTerm|raftIndex|raftAppliedIndex|dbSize|dbSizeInUse)":\d+`), `"$1":N`},
		{regexp.MustCompile(`"(ClusterID|MemberID|RaftTerm)" : \d+`), `"$1" : N`},
		{regexp.MustCompile(`\b[0-9a-f]{14,16}\b`), "ID"},
		{regexp.MustCompile(`took = \S+`), "took = T"},
		{regexp.MustCompile(`"took":"[^"]+"`), `"took":"T"`},
		{regexp.MustCompile(`took [0-9.]+(µs|ms|s)`), "took T"},
		{regexp.MustCompile(`remaining\(\d+s\)`), "remaining(N)"},
		{regexp.MustCompile(`\d+(\.\d+)? [kMG]?B`), "SIZE"},
		{regexp.MustCompile(`\b\d+%`), "PART"},
		{regexp.MustCompile(`true, false, \d+, \d+, \d+,`), "true, false, N, N, N,"},
		// kubase has no quota unless it is given one, and no peers.
		{regexp.MustCompile(`"dbSizeQuota":\d+,`), ""},
		{regexp.MustCompile(`("peerURLs":\[")?http://localhost:2380("\],)?`), ""},
	}
)

// anyEtcd hides what differs between etcds, and the log of etcdctl's client.
func anyEtcd(out, endpoint string) string {
	var lines []string
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, `{"level":`) {
			lines = append(lines, line)
		}
	}
	out = strings.Join(lines, "")
	out = strings.ReplaceAll(out, endpoint, "ENDPOINT")
	out = strings.ReplaceAll(out, strings.TrimPrefix(endpoint, "http://"), "ENDPOINT")
	for _, d := range differences {
		out = d.pattern.ReplaceAllString(out, d.replacement)
	}
	return strings.TrimSpace(out)
}

func etcdctlCommand(ctx context.Context, endpoint string, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, etcdctl, append([]string{"--endpoints=" + endpoint}, args...)...)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGINT) } // as Ctrl-C does
	return command
}

// runEtcdctl returns what etcdctl says, and that it failed if it did.
func runEtcdctl(t *testing.T, endpoint, stdin string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	command := etcdctlCommand(ctx, endpoint, args...)
	command.Stdin = strings.NewReader(stdin)
	out, err := command.CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s%v\n", out, err)
	}
	return string(out)
}

// following is an etcdctl that goes on until it is stopped.
type following struct {
	t     *testing.T
	lines *bufio.Reader
	stop  func()
	log   *bytes.Buffer
}

func followEtcdctl(t *testing.T, endpoint string, args ...string) *following {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	command := etcdctlCommand(ctx, endpoint, args...)
	log := &bytes.Buffer{}
	command.Stderr = log
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	stop := func() {
		cancel()
		_ = command.Wait() // it was interrupted
	}
	t.Cleanup(stop)
	return &following{t: t, lines: bufio.NewReader(out), stop: stop, log: log}
}

// read returns the next n lines.
func (f *following) read(n int) string {
	f.t.Helper()
	var lines strings.Builder
	for range n {
		line, err := f.lines.ReadString('\n')
		lines.WriteString(line)
		if err != nil {
			f.stop()
			f.t.Fatalf("etcdctl ended (%v) after\n%s%s", err, &lines, f.log)
		}
	}
	return lines.String()
}

// TestEtcdctlFollows runs what does not end by itself: watches, elections and mirrors.
func TestEtcdctlFollows(t *testing.T) {
	t.Parallel()
	want := etcdctlFollowing(t, startEtcd(t))
	for name, dsn := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endpoint := serveEtcd(t, dsn(t))
			if diff := cmp.Diff(want, etcdctlFollowing(t, endpoint)); diff != "" {
				t.Errorf("etcdctl says (- on etcd, + on kubase):\n%s", diff)
			}
			t.Run("Mirror", func(t *testing.T) { testMirror(t, endpoint, startEtcd(t)) })
		})
	}
}

func etcdctlFollowing(t *testing.T, endpoint string) (said []string) {
	say := func(what, out string) {
		said = append(said, what)
		said = append(said, strings.Split(anyEtcd(out, endpoint), "\n")...)
	}
	run := func(args ...string) { runEtcdctl(t, endpoint, "", args...) }
	run("put", "w", "1")
	run("put", "w", "2")
	run("put", "w/x", "3")
	run("del", "w")
	say("watch", followEtcdctl(t, endpoint, "watch", "w", "--rev=2", "--prev-kv").read(3+5+4))
	say("watch --prefix", followEtcdctl(t, endpoint, "watch", "w", "--prefix", "--rev=3", "-w=json").read(1))
	live := followEtcdctl(t, endpoint, "watch", "live", "--rev=6")
	run("put", "live", "1")
	say("watch a key to come", live.read(3))
	run("compaction", "5")
	say("watch what is compacted", runEtcdctl(t, endpoint, "", "watch", "w", "--rev=2"))

	first := followEtcdctl(t, endpoint, "elect", "office", "first")
	say("elect", first.read(2))
	second := followEtcdctl(t, endpoint, "elect", "office", "second")
	observer := followEtcdctl(t, endpoint, "elect", "office", "--listen")
	say("elect --listen", observer.read(2))
	first.stop()
	say("elect, second", second.read(2))
	say("elect --listen, second", observer.read(2))

	holder := followEtcdctl(t, endpoint, "lock", "mutex")
	say("lock", holder.read(1))
	waiter := followEtcdctl(t, endpoint, "lock", "mutex")
	holder.stop()
	say("lock, second", waiter.read(1))
	waiter.stop()
	return said
}

// testMirror mirrors from kubase to a real etcd and back again: what was there and what comes.
func testMirror(t *testing.T, kubase, etcd string) {
	from, between := etcdClient(t, kubase, nil), etcdClient(t, etcd, nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const last = "m/last"
	for i := range 250 {
		if _, err := from.Put(ctx, fmt.Sprintf("m/%03d", i), strings.Repeat("v", i)); err != nil {
			t.Fatal(err)
		}
	}
	mirrored := between.Watch(ctx, last)
	back := from.Watch(ctx, "back/"+last)
	followEtcdctl(t, kubase, "make-mirror", strings.TrimPrefix(etcd, "http://"), "--prefix=m/")
	followEtcdctl(t, etcd, "make-mirror", strings.TrimPrefix(kubase, "http://"), "--prefix=m/", "--dest-prefix=back/m/")
	// The mirrors may not have begun to watch when this is written: then it is part of what was there.
	if _, err := from.Delete(ctx, "m/100"); err != nil {
		t.Fatal(err)
	}
	if _, err := from.Put(ctx, last, "1"); err != nil {
		t.Fatal(err)
	}
	for _, watch := range []clientv3.WatchChan{mirrored, back} {
		if _, ok := <-watch; !ok {
			t.Fatal("the last key does not arrive")
		}
	}
	content := func(client *clientv3.Client, prefix string) map[string]string {
		got, err := client.Get(ctx, prefix+"m/", clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		content := map[string]string{}
		for _, kv := range got.Kvs {
			content[strings.TrimPrefix(string(kv.Key), prefix)] = string(kv.Value)
		}
		return content
	}
	want := content(from, "")
	if len(want) != 250 {
		t.Errorf("there are %d keys to mirror, want 250", len(want))
	}
	if diff := cmp.Diff(want, content(between, "")); diff != "" {
		t.Errorf("in etcd:\n%s", diff)
	}
	if diff := cmp.Diff(want, content(from, "back/")); diff != "" {
		t.Errorf("back in kubase:\n%s", diff)
	}
}

// TestEtcdctlCheckPerf runs etcdctl's check for small clusters, a minute of 150 puts a second, while other tests run: so what it says of
// latency is not looked at.
func TestEtcdctlCheckPerf(t *testing.T) {
	t.Parallel()
	for name, dsn := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := runEtcdctl(t, serveEtcd(t, dsn(t)), "", "check", "perf", "--load=s")
			_, verdict, _ := strings.Cut(out, "100.00%") // before it stands what a progress bar shows
			contains(t, verdict, "PASS: Throughput is")
			t.Log(verdict)
		})
	}
}
