package server

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/healthz"
)

// TestReadinessIsExplained asks upstream's handler with and without the datastore's status: only a verbose answer to a known user differs,
// and only in the datastore's line.
func TestReadinessIsExplained(t *testing.T) {
	someone := &user.DefaultInfo{Name: "someone", Groups: []string{user.AllAuthenticated}}
	nobody := &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
	const ok, explained = "[+]datastore ok\n", "[+]datastore ok: as it should be\n"
	for _, broken := range []string{"", "datastore", "other"} {
		mux := http.NewServeMux()
		var checks []healthz.HealthChecker
		for _, name := range []string{"ping", datastoreCheck, "other"} {
			checks = append(checks, healthz.NamedCheck(name, func(*http.Request) error {
				if name == broken {
					return fmt.Errorf("not for everybody's eyes")
				}
				return nil
			}))
		}
		for _, path := range []string{"/readyz", "/livez"} {
			healthz.InstallPathHandler(mux, path, checks...)
		}
		handler := withDatastoreStatus(mux, func() string { return "as it should be" })
		for _, who := range []user.Info{someone, nobody} {
			for _, target := range []string{
				"/readyz", "/readyz?verbose", "/readyz?verbose&exclude=datastore", "/readyz?exclude=other", "/livez", "/livez?verbose", "/readyz/datastore",
			} {
				ask := func(handler http.Handler) *httptest.ResponseRecorder {
					r := httptest.NewRequestWithContext(request.WithUser(t.Context(), who), http.MethodGet, target, nil)
					w := httptest.NewRecorder()
					handler.ServeHTTP(w, r)
					return w
				}
				upstream, ours := ask(mux), ask(handler)
				want := upstream.Body.String()
				if who == someone && strings.HasPrefix(target, "/readyz?verbose") {
					want = strings.Replace(want, ok, explained, 1)
				}
				if got := ours.Body.String(); got != want || ours.Code != upstream.Code {
					t.Errorf("%s, broken %q, as %s: %d %q, want %d %q", target, broken, who.GetName(), ours.Code, got, upstream.Code, want)
				}
				if is, should := strings.Contains(want, explained), target == "/readyz?verbose" && who == someone && broken != datastoreCheck; is != should {
					t.Errorf("%s, broken %q, as %s says %q", target, broken, who.GetName(), want)
				}
			}
		}
	}
}
