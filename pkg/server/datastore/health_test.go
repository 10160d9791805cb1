package datastore

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// TestHealthIsEtcds asks what probes of an etcd ask.
func TestHealthIsEtcds(t *testing.T) {
	d, err := Open(t.Context(), Options{DSN: "sqlite://" + filepath.Join(t.TempDir(), "kubase.db")})
	if err != nil {
		t.Fatal(err)
	}
	d.metrics = grpcprom.NewServerMetrics()
	handler := d.metricsHandler()
	ask := func(path string, code int, body string) {
		t.Helper()
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		if got := strings.TrimSpace(answer.Body.String()); answer.Code != code || got != body {
			t.Errorf("%s answers %d %s, want %d %s", path, answer.Code, got, code, body)
		}
	}
	const healthy = `{"health":"true","reason":""}`
	ask("/health", 200, healthy)
	ask("/readyz", 200, "ok")

	d.store.RaiseAlarm(t.Context(), sqlstore.Alarm{Member: 1, Kind: sqlstore.AlarmNoSpace})
	ask("/health", 503, `{"health":"false","reason":"ALARM NOSPACE"}`)
	ask("/health?exclude=NOSPACE", 200, healthy)
	ask("/readyz", 200, "ok")

	d.store.RaiseAlarm(t.Context(), sqlstore.Alarm{Member: 1, Kind: sqlstore.AlarmCorrupt})
	ask("/health?exclude=NOSPACE", 503, `{"health":"false","reason":"ALARM CORRUPT"}`)
	ask("/health?exclude=NOSPACE&exclude=CORRUPT", 200, healthy)
	ask("/readyz", 503, "not ready")

	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	ask("/health?exclude=NOSPACE&exclude=CORRUPT", 503, `{"health":"false","reason":"RANGE ERROR"}`)
	ask("/livez", 200, "ok")
}
