package datastore

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// fact is a gauge that tells of the datastore.
type fact struct {
	desc *prometheus.Desc
	// value is not called if the backend or its silence leaves nothing to tell.
	value func(*Status) float64
	known func(*Status) bool
}

func newFact(name, help string, known func(*Status) bool, value func(*Status) float64) fact {
	return fact{prometheus.NewDesc("kubase_datastore_"+name, help, nil, nil), value, known}
}

// What a fact needs to be known.
func always(*Status) bool     { return true }
func answered(s *Status) bool { return s.Err == nil }
func counted(s *Status) bool  { return s.Keys >= 0 }
func isSQLite(s *Status) bool { return s.Backend == backendSQLite }
func hasFile(s *Status) bool  { return s.FilesystemFreeBytes >= 0 }
func hasPages(s *Status) bool { return isSQLite(s) && answered(s) }
func hasRows(s *Status) bool  { return s.Backend == backendPostgres && answered(s) }
func hasCompacted(s *Status) bool {
	return answered(s) && s.Database.LastCompaction.Revision > 0
}

var facts = []fact{
	newFact("up", "Whether the database answers.", always, func(s *Status) float64 { return is(s.Err == nil) }),
	newFact("revision", "Newest revision that this server has seen.", always, func(s *Status) float64 { return float64(s.Revision) }),
	newFact("compact_revision", "Revision below which history is gone, as far as this server has seen.", always,
		func(s *Status) float64 { return float64(s.CompactRevision) }),
	newFact("keys", "Live keys.", counted, func(s *Status) float64 { return float64(s.Keys) }),
	newFact("watchers", "Open watches of this server.", always, func(s *Status) float64 { return float64(s.Watchers) }),
	newFact("watcher_lag_revisions", "By how many revisions the slowest watch of this server is behind.", always,
		func(s *Status) float64 { return float64(s.WatcherLag) }),
	newFact("servers", "Servers that have written within the last minute, and this one.", answered,
		func(s *Status) float64 { return float64(s.Database.Servers) }),
	newFact("size_bytes", "Size of the database.", answered, func(s *Status) float64 { return float64(s.Database.SizeBytes) }),
	newFact("wal_bytes", "Size of SQLite's write-ahead log.", isSQLite, func(s *Status) float64 { return float64(s.WALBytes) }),
	newFact("free_pages_bytes", "Part of SQLite's file that holds nothing.", hasPages, func(s *Status) float64 { return float64(s.FreePagesBytes()) }),
	newFact("filesystem_free_bytes", "Free space in the file system of SQLite's file.", hasFile,
		func(s *Status) float64 { return float64(s.FilesystemFreeBytes) }),
	newFact("dead_rows", "Dead rows of Postgres' tables that no vacuum has removed, by Postgres' own statistics.", hasRows,
		func(s *Status) float64 { return float64(s.Database.DeadRows) }),
	newFact("compacting", "Whether history below the compact revision is still being deleted.", answered,
		func(s *Status) float64 { return is(s.Compacting()) }),
	newFact("last_compaction_revision", "Revision of the last compaction of which history was deleted, by any server.", hasCompacted,
		func(s *Status) float64 { return float64(s.Database.LastCompaction.Revision) }),
	newFact("last_compaction_timestamp_seconds", "When the last compaction began to delete history.", hasCompacted,
		func(s *Status) float64 { return float64(s.Database.LastCompaction.Began.UnixMicro()) / 1e6 }),
	newFact("last_compaction_duration_seconds", "How long the last compaction deleted history, so far if it still does.", hasCompacted,
		func(s *Status) float64 { return s.Database.LastCompaction.Took().Round(time.Microsecond).Seconds() }),
}

var info = prometheus.NewDesc("kubase_datastore_info", "What the datastore is.", []string{"backend", "engine_version", "schema_version"}, nil)

// Facts tells Prometheus how the datastore is. A scrape asks the database once.
func (d *Datastore) Facts() prometheus.Collector { return collector{d} }

type collector struct{ *Datastore }

func (collector) Describe(to chan<- *prometheus.Desc) {
	to <- info
	for _, f := range facts {
		to <- f.desc
	}
}

func (c collector) Collect(to chan<- prometheus.Metric) {
	s := c.Status()
	if s.Err == nil {
		to <- prometheus.MustNewConstMetric(info, prometheus.GaugeValue, 1, s.Backend, s.Database.Version, strconv.FormatInt(s.SchemaVersion, 10))
	}
	for _, f := range facts {
		if f.known(&s) {
			to <- prometheus.MustNewConstMetric(f.desc, prometheus.GaugeValue, f.value(&s))
		}
	}
}

func is(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
