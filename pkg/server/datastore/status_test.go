package datastore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/kubase/kubase/pkg/sqlstore"
	"github.com/kubase/kubase/test/postgrestest"
)

func TestMain(m *testing.M) { os.Exit(postgrestest.Run(m)) }

func openDatastore(t *testing.T, o Options) *Datastore {
	t.Helper()
	d, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// eventually waits until something holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !holds() {
		if ctx.Err() != nil {
			t.Fatalf("it does not come true that %s", what)
		}
		runtime.Gosched()
	}
}

var sample = regexp.MustCompile(`(?m)^kubase_datastore_(\w+)(?:\{(.*)\})? (.+)$`)

// scrape reads our metrics as Prometheus does: their values by name, and the labels of info.
func scrape(t *testing.T, d *Datastore) (values map[string]float64, info string) {
	t.Helper()
	values = map[string]float64{}
	for _, line := range sample.FindAllStringSubmatch(get(t, d, "/metrics"), -1) {
		value, err := strconv.ParseFloat(line[3], 64)
		if err != nil {
			t.Fatal(err)
		}
		if line[1] == "info" {
			info = line[2]
			continue
		}
		values[line[1]] = value
	}
	return values, info
}

func get(t *testing.T, d *Datastore, path string) string {
	t.Helper()
	answer := httptest.NewRecorder()
	d.metricsHandler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return answer.Body.String()
}

// TestFacts compares what metrics and readiness say with what was done to the datastore, and what metrics there are with the reference.
func TestFacts(t *testing.T) {
	common := []string{
		"up", "revision", "compact_revision", "keys", "watchers", "watcher_lag_revisions", "servers", "size_bytes", "compacting",
		"last_compaction_revision", "last_compaction_timestamp_seconds", "last_compaction_duration_seconds",
	}
	for backend, c := range map[string]struct {
		options Options
		also    []string
	}{
		backendSQLite:   {Options{DataDir: t.TempDir()}, []string{"wal_bytes", "free_pages_bytes", "filesystem_free_bytes"}},
		backendPostgres: {Options{DSN: withPassword(postgrestest.Schema(t))}, []string{"dead_rows"}},
	} {
		t.Run(backend, func(t *testing.T) {
			ctx, began := t.Context(), time.Now()
			d := openDatastore(t, c.options)
			put := func(n, size int) {
				t.Helper()
				var ops []sqlstore.Op
				for i := range n {
					ops = append(ops, sqlstore.Op{Put: &sqlstore.PutRequest{Key: fmt.Appendf(nil, "/%d", i), Value: make([]byte, size)}})
				}
				if _, err := d.store.Txn(ctx, &sqlstore.TxnRequest{Success: ops}); err != nil {
					t.Fatal(err)
				}
			}
			put(300, 10_000)
			put(300, 10)
			values, _ := scrape(t, d)
			if _, ok := values["last_compaction_revision"]; ok {
				t.Error("there is a last compaction before the first one")
			}
			if _, err := d.store.CompactPhysically(ctx, 3); err != nil {
				t.Fatal(err)
			}
			stream := d.store.NewWatchStream()
			defer stream.Close()
			stream.Watch(sqlstore.WatchRequest{KeyRange: sqlstore.KeyRange{Key: []byte("/1")}})
			if _, err := d.store.Txn(ctx, &sqlstore.TxnRequest{Success: []sqlstore.Op{
				{Put: &sqlstore.PutRequest{Key: []byte("/1")}}, {Delete: &sqlstore.DeleteRequest{KeyRange: sqlstore.KeyRange{Key: []byte("/0")}}},
			}}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the keys are counted", func() bool { return d.store.Status().Keys == 299 })

			s := d.Status()
			values, info := scrape(t, d)
			names := slices.Sorted(maps.Keys(values))
			if want := slices.Sorted(slices.Values(slices.Concat(common, c.also))); !slices.Equal(names, want) {
				t.Errorf("there are %v, want %v", names, want)
			}
			for name, want := range map[string]float64{
				"up": 1, "revision": 4, "compact_revision": 3, "keys": 299, "watchers": 1, "watcher_lag_revisions": 1, "servers": 1,
				"size_bytes": float64(s.Database.SizeBytes), "compacting": 0, "last_compaction_revision": 3,
			} {
				if values[name] != want {
					t.Errorf("%s is %v, want %v", name, values[name], want)
				}
			}
			if at := values["last_compaction_timestamp_seconds"]; at < float64(began.Unix()) || at > float64(time.Now().UnixMicro())/1e6 {
				t.Errorf("the last compaction was at %v, the test began at %v", at, began)
			}
			if took := values["last_compaction_duration_seconds"]; took <= 0 || took > time.Since(began).Seconds() {
				t.Errorf("the last compaction took %v s, the test %s", took, time.Since(began))
			}
			want := fmt.Sprintf(`backend="%s",engine_version="%s",schema_version="%d"`, backend, s.Database.Version, s.SchemaVersion)
			if info != want || s.Database.Version == "" || s.SchemaVersion == 0 {
				t.Errorf("info has the labels %s, want %s", info, want)
			}
			for _, name := range append(names, "info") {
				if !strings.Contains(reference(t), "\n| `kubase_datastore_"+name+"` | ") {
					t.Errorf("the reference does not tell of %s", name)
				}
			}

			line := fmt.Sprintf("%s, revision 4, compacted at 3, 299 keys, %d bytes, 1 watchers, the slowest 1 revisions behind", backend, s.Database.SizeBytes)
			if got, want := get(t, d, "/readyz?verbose"), "[+]datastore ok: "+line+"\nreadyz check passed\n"; got != want {
				t.Errorf("readyz says %q, want %q", got, want)
			}
			if got := get(t, d, "/readyz"); got != "ok\n" {
				t.Errorf("readyz says %q", got)
			}
			if all := get(t, d, "/metrics") + s.Endpoint + s.String(); strings.Contains(all, secret) {
				t.Errorf("the password is in\n%s", all)
			}
			switch backend {
			case backendSQLite:
				checkSpace(t, d, c.options, values)
			case backendPostgres:
				eventually(t, "Postgres has counted what compaction deleted", func() bool { values, _ := scrape(t, d); return values["dead_rows"] >= 300 })
			}
		})
	}
}

func reference(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// secret is a password that Postgres does not ask for.
const secret = "Rumpelstiltskin"

func withPassword(dsn string) string {
	return strings.Replace(dsn, "postgres@", "postgres:"+secret+"@", 1)
}

// checkSpace compares with the file: 3 MB of values were replaced by short ones, and compaction keeps 8 MiB of free pages.
func checkSpace(t *testing.T, d *Datastore, o Options, values map[string]float64) {
	t.Helper()
	if free := values["free_pages_bytes"]; free < 2_500_000 || free > values["size_bytes"] {
		t.Errorf("%v of %v bytes are free", free, values["size_bytes"])
	}
	wal, err := os.Stat(filepath.Join(o.DataDir, sqliteFile+"-wal"))
	if err != nil || values["wal_bytes"] != float64(wal.Size()) || wal.Size() == 0 {
		t.Errorf("the WAL has %v bytes, want those of %v (%v)", values["wal_bytes"], wal, err)
	}
	if values["filesystem_free_bytes"] < 1<<20 {
		t.Errorf("%v bytes are left in the file system", values["filesystem_free_bytes"])
	}
	if err := d.store.Defragment(t.Context()); err != nil {
		t.Fatal(err)
	}
	if values, _ := scrape(t, d); values["free_pages_bytes"] != 0 {
		t.Errorf("%v bytes are free after a vacuum", values["free_pages_bytes"])
	}
}

// TestFactsWithoutAnAnswer asks a datastore whose Postgres is gone, and one whose Postgres does not answer.
func TestFactsWithoutAnAnswer(t *testing.T) {
	server := postgrestest.Start(t)
	dsn := server.DSN("postgres")
	d := openDatastore(t, Options{DSN: dsn})
	if _, err := d.store.Txn(t.Context(), &sqlstore.TxnRequest{Success: []sqlstore.Op{{Put: &sqlstore.PutRequest{Key: []byte("a")}}}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the key is counted", func() bool { return d.store.Status().Keys == 1 })
	silent := func(what string) {
		t.Helper()
		values, info := scrape(t, d)
		want := map[string]float64{"up": 0, "revision": 2, "compact_revision": 0, "keys": 1, "watchers": 0, "watcher_lag_revisions": 0}
		if !maps.Equal(values, want) || info != "" {
			t.Errorf("%s: the metrics are %v, info %s, want %v", what, values, info, want)
		}
	}

	lock, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), "BEGIN; LOCK TABLE compaction"); err != nil {
		t.Fatal(err)
	}
	silent("locked")
	// Those who ask at once share one question, and its error.
	began := time.Now()
	var errs [20]error
	var asking sync.WaitGroup
	for i := range errs {
		asking.Go(func() { errs[i] = d.Status().Err })
	}
	asking.Wait()
	if took := time.Since(began); took < statusTimeout || took > statusTimeout*3/2 {
		t.Errorf("an answer that does not come is waited for %s, want %s", took, statusTimeout)
	}
	for _, err := range errs {
		if !errors.Is(err, context.DeadlineExceeded) || err != errs[0] {
			t.Errorf("one gets %v, another one %v", errs[0], err)
		}
	}
	if err := lock.Close(t.Context()); err != nil { // and with it the lock goes
		t.Fatal(err)
	}
	eventually(t, "it answers again", func() bool { values, _ := scrape(t, d); return values["up"] == 1 })

	server.Kill(t)
	silent("killed")
	server.Restart(t)
	eventually(t, "it answers after a restart", func() bool { values, _ := scrape(t, d); return values["up"] == 1 && values["keys"] == 1 })
}
