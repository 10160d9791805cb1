package server

import (
	"bytes"
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// datastoreCheck is the name of the health check that tells whether the datastore is usable.
const datastoreCheck = "datastore"

// explainReadiness makes /readyz?verbose say how the datastore is. Upstream's checks can only be ok or fail, so the line of ours is written
// anew on its way to the client: to those who have logged in, as upstream withholds reasons from everybody else.
func explainReadiness(config *genericapiserver.Config, status func() string) {
	build := config.BuildHandlerChainFunc
	config.BuildHandlerChainFunc = func(handler http.Handler, config *genericapiserver.Config) http.Handler {
		return build(withDatastoreStatus(handler, status), config)
	}
}

func withDatastoreStatus(handler http.Handler, status func() string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" && r.URL.Query().Has("verbose") && loggedIn(r) {
			w = &explainingWriter{w, status}
		}
		handler.ServeHTTP(w, r)
	})
}

func loggedIn(r *http.Request) bool {
	who, ok := request.UserFrom(r.Context())
	return ok && !slices.Contains(who.GetGroups(), user.AllUnauthenticated)
}

// explainingWriter adds the datastore's status to its line, of an answer that is written at once.
type explainingWriter struct {
	http.ResponseWriter
	status func() string
}

func (w *explainingWriter) Write(text []byte) (int, error) {
	line := []byte("[+]" + datastoreCheck + " ok\n")
	if before, after, found := bytes.Cut(text, line); found {
		explained := slices.Concat(before, line[:len(line)-1], []byte(": "+w.status()+"\n"), after)
		if _, err := w.ResponseWriter.Write(explained); err != nil {
			return 0, err
		}
		return len(text), nil
	}
	return w.ResponseWriter.Write(text)
}
