package datastore

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// checkTimeout is how long a health check may take.
const checkTimeout = 2 * time.Second

// metricsHandler serves what etcd serves on its metrics URLs. Whether the server is healthy means what it means there, too.
func (d *Datastore) metricsHandler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(d.metrics, d.Facts(), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", d.readyz)
	mux.HandleFunc("GET /health", d.health)
	return mux
}

// readyz minds no lack of space: reads and deletes work.
func (d *Datastore) readyz(w http.ResponseWriter, r *http.Request) {
	if d.store.Alarmed(sqlstore.AlarmCorrupt) || !d.answers(r.Context()) {
		http.Error(w, "not ready", http.StatusServiceUnavailable)
		return
	}
	if !r.URL.Query().Has("verbose") {
		_, _ = w.Write([]byte("ok\n"))
		return
	}
	s := d.Status()
	_, _ = fmt.Fprintf(w, "[+]datastore ok: %s\nreadyz check passed\n", &s) // in the form of the API server
}

// health minds alarms, but for those that the request excludes.
func (d *Datastore) health(w http.ResponseWriter, r *http.Request) {
	answer := struct {
		Health string `json:"health"`
		Reason string `json:"reason"`
	}{Health: "true"}
	excluded := r.URL.Query()["exclude"]
	for _, kind := range []sqlstore.AlarmKind{sqlstore.AlarmNoSpace, sqlstore.AlarmCorrupt} {
		name := etcdserverpb.AlarmType(kind).String()
		if answer.Reason == "" && d.store.Alarmed(kind) && !slices.Contains(excluded, name) {
			answer.Reason = "ALARM " + name
		}
	}
	if answer.Reason == "" && !d.answers(r.Context()) {
		answer.Reason = "RANGE ERROR"
	}
	if answer.Reason != "" {
		answer.Health = "false"
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(answer) // a client that is gone needs no answer
}

func (d *Datastore) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if err := d.Check(ctx); err != nil {
		d.log.Warn("the datastore is not ready", "error", err)
		return false
	}
	return true
}
