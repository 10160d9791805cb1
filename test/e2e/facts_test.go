package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubase/kubase/pkg/registry/datastore/v1alpha1"
)

// TestDatastoreFacts compacts an API server's datastore and asks in every place how it is.
func TestDatastoreFacts(t *testing.T) {
	const password = "Rumpelstiltskin" // which Postgres does not ask for
	for backend, dsn := range engines {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			ctx, began := t.Context(), time.Now().Truncate(time.Second)
			place, socket := strings.Replace(dsn(t), "postgres@", "postgres:"+password+"@", 1), "unix://"+filepath.Join(t.TempDir(), "etcd.sock")
			s := start(t, t.TempDir(), "--datastore-dsn="+place, "--datastore-listen="+socket)
			client := etcdClient(t, socket, nil)
			if _, err := client.Put(ctx, "key", "value"); err != nil {
				t.Fatal(err)
			}
			put, err := client.Put(ctx, "key", "another value")
			if err != nil {
				t.Fatal(err)
			}
			release := func() {}
			if backend == "postgres" {
				release = holdDeletion(t, place)
			}
			if _, err := client.Compact(ctx, put.Header.Revision); err != nil {
				t.Fatal(err)
			}
			if backend == "postgres" {
				d := s.datastore(t, backend)
				message := fmt.Sprintf("history is deleted up to revision 0 of %d", put.Header.Revision)
				if c := meta.FindStatusCondition(d.Conditions, v1alpha1.ConditionCompacting); c.Status != metav1.ConditionTrue || c.Message != message {
					t.Errorf("while history waits to be deleted, the condition is %v", c)
				}
				if values := s.facts(t); values["compacting"] != 1 {
					t.Errorf("while history waits to be deleted, the metrics are %v", values)
				}
				contains(t, s.readyz(t), fmt.Sprintf("compacted at %d and deleted up to 0,", put.Header.Revision))
			}
			release()
			eventually(t, "history is deleted", func() error {
				d := s.datastore(t, backend)
				if c := meta.FindStatusCondition(d.Conditions, v1alpha1.ConditionCompacting); c.Status != metav1.ConditionFalse {
					return errors.New(c.Message)
				}
				return nil
			})
			last := s.datastore(t, backend)
			if at := last.LastCompactionTime; at == nil || at.Before(&metav1.Time{Time: began}) || at.After(time.Now()) {
				t.Errorf("the last compaction was at %v, the test began at %s", at, began)
			}
			if took := last.LastCompactionDuration; took == nil || took.Duration <= 0 || took.Duration > time.Since(began) {
				t.Errorf("the last compaction took %v", took)
			}
			if last.LastCompactionRevision != put.Header.Revision || last.CompactRevision != put.Header.Revision {
				t.Errorf("compacted at %d, the last time at %d, want %d", last.CompactRevision, last.LastCompactionRevision, put.Header.Revision)
			}

			eventually(t, "object, metrics and readiness agree", func() error {
				before, values, line, after := s.datastore(t, backend), s.facts(t), s.readyz(t), s.datastore(t, backend)
				if !reflect.DeepEqual(before, after) {
					return errors.New("it was written meanwhile")
				}
				want := map[string]float64{
					"up": 1, "revision": float64(before.Revision), "compact_revision": float64(before.CompactRevision), "keys": float64(before.Keys),
					"watchers": float64(before.Watchers), "watcher_lag_revisions": float64(before.WatcherLag), "size_bytes": float64(before.SizeBytes),
					"servers": float64(len(before.Servers)), "compacting": 0, "last_compaction_revision": float64(before.LastCompactionRevision),
					"last_compaction_duration_seconds": before.LastCompactionDuration.Seconds(),
				}
				if backend == "sqlite" {
					want["wal_bytes"], want["free_pages_bytes"] = float64(before.WALBytes), float64(before.FreePagesBytes)
				} else {
					want["dead_rows"] = float64(before.DeadRows)
				}
				for name, value := range want {
					if values[name] != value {
						return fmt.Errorf("%s is %v by the metrics and %v by the object", name, values[name], value)
					}
				}
				if at := int64(values["last_compaction_timestamp_seconds"]); at != before.LastCompactionTime.Unix() {
					return fmt.Errorf("the last compaction was at %d by the metrics and %v by the object", at, before.LastCompactionTime)
				}
				text := fmt.Sprintf("\n[+]datastore ok: %s, revision %d, compacted at %d, %d keys, %d bytes, %d watchers, the slowest %d revisions behind\n",
					backend, before.Revision, before.CompactRevision, before.Keys, before.SizeBytes, before.Watchers, before.WatcherLag)
				if !strings.Contains(line, text) {
					return fmt.Errorf("%q is not in\n%s", text, line)
				}
				return nil
			})
			if strings.Contains(s.kubectl(t, "get", "--raw", "/metrics")+s.readyz(t)+s.kubectl(t, "get", "datastores", "-o", "yaml"), password) {
				t.Error("the password can be read")
			}
			if got := s.kubectl(t, "get", "--raw", "/readyz"); got != "ok" {
				t.Errorf("readyz says %q", got)
			}
		})
	}
}

// holdDeletion keeps a Postgres server's clients from deleting history, until the returned function is called.
func holdDeletion(t *testing.T, dsn string) (release func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE compaction IN EXCLUSIVE MODE"); err != nil { // who only reads may
		t.Fatal(err)
	}
	return func() {
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func (s *server) datastore(t *testing.T, name string) v1alpha1.DatastoreStatus {
	t.Helper()
	var d v1alpha1.Datastore
	if err := json.Unmarshal([]byte(s.kubectl(t, "get", "datastore", name, "-o", "json")), &d); err != nil {
		t.Fatal(err)
	}
	return d.Status
}

func (s *server) readyz(t *testing.T) string {
	t.Helper()
	return s.kubectl(t, "get", "--raw", "/readyz?verbose")
}

var fact = regexp.MustCompile(`(?m)^kubase_datastore_(\w+) (.+)$`)

// facts are the metrics of the datastore.
func (s *server) facts(t *testing.T) map[string]float64 {
	t.Helper()
	values := map[string]float64{}
	for _, line := range fact.FindAllStringSubmatch(s.kubectl(t, "get", "--raw", "/metrics"), -1) {
		value, err := strconv.ParseFloat(line[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		values[line[1]] = value
	}
	return values
}
