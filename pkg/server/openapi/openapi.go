// Package openapi serves the OpenAPI documents of a server's own resources without keeping them. Nobody asks an idle server for them,
// and kept, as upstream's handlers keep them, they are near half of the heap. Here upstream's handlers are made when somebody asks, one a
// document, and let go when nobody has for a while.
package openapi

import (
	"bytes"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/emicklei/go-restful/v3"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/util/responsewriter"
	"k8s.io/klog/v2"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/handler3"
)

const (
	v2Path = "/openapi/v2"
	v3Path = "/openapi/v3"

	// keep is how long a document is kept after somebody asked for it: who needs one often asks again at once.
	keep = time.Minute
)

// Install serves the documents of all resources that server has by now. It takes the place of upstream's handlers, so the server's
// configuration must say SkipOpenAPIInstallation.
func Install(server *genericapiserver.GenericAPIServer, v2 *common.Config, v3 *common.OpenAPIV3Config) {
	container := server.Handler.GoRestfulContainer
	d := &documents{
		v2: &document{make: func() http.Handler {
			m := mux.NewPathRecorderMux("openapi-v2")
			routes.OpenAPI{Config: v2}.InstallV2(container, m)
			return m
		}},
		v3: map[string]*document{},
	}
	for _, service := range container.RegisteredWebServices() {
		d.v3[strings.TrimPrefix(service.RootPath(), "/")] = &document{make: func() http.Handler {
			m := mux.NewPathRecorderMux("openapi-v3")
			routes.OpenAPI{V3Config: v3}.InstallV3(restful.NewContainer().Add(service), m)
			return m
		}}
	}
	d.discovery = sync.OnceValues(d.discover)

	m := server.Handler.NonGoRestfulMux
	m.Handle(v2Path, d.v2)
	m.Handle(v3Path, http.HandlerFunc(d.serveDiscovery))
	m.HandlePrefix(v3Path+"/", http.HandlerFunc(d.serveV3))
}

type documents struct {
	v2 *document
	v3 map[string]*document // by the path of their group and version, like "apis/apps/v1"

	discovery func() (*discovery, error)
}

// discovery says where the documents of version 3 are, with a hash of each, so that clients know which of theirs still hold.
type discovery struct {
	body     []byte // JSON
	etag     string
	modified time.Time
}

// discover makes every document once, for its hash, and keeps none.
func (d *documents) discover() (*discovery, error) {
	all := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	request, err := http.NewRequest(http.MethodGet, v3Path, nil)
	if err != nil {
		return nil, err
	}
	for path, document := range d.v3 {
		response := responsewriter.NewInMemoryResponseWriter()
		document.make().ServeHTTP(response, request)
		if response.RespCode() != http.StatusOK {
			return nil, fmt.Errorf("cannot make the OpenAPI document of %s: %s", path, response)
		}
		var one handler3.OpenAPIV3Discovery
		if err := json.Unmarshal(response.Data(), &one); err != nil {
			return nil, fmt.Errorf("cannot read the hash of the OpenAPI document of %s: %w", path, err)
		}
		all.Paths[path] = one.Paths[path]
	}
	body, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	return &discovery{body: body, etag: fmt.Sprintf("%X", sha512.Sum512(body)), modified: time.Now()}, nil
}

func (d *documents) serveDiscovery(w http.ResponseWriter, r *http.Request) {
	found, err := d.discovery()
	if err != nil {
		klog.ErrorS(err, "Cannot serve OpenAPI discovery")
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Etag", strconv.Quote(found.etag))
	w.Header().Set("Content-Type", "application/json")
	http.ServeContent(w, r, v3Path, found.modified, bytes.NewReader(found.body))
}

func (d *documents) serveV3(w http.ResponseWriter, r *http.Request) {
	document, ok := d.v3[strings.TrimPrefix(r.URL.Path, v3Path+"/")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	document.ServeHTTP(w, r)
}

// document is the handler of one document, made when it is asked.
type document struct {
	make func() http.Handler

	mu      sync.Mutex // guards what follows; held while the handler is made, so that two requests share it
	handler http.Handler
	letGo   *time.Timer
	etag    string // of the document, once it was served: it never changes
}

func (d *document) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	handler, etag := d.get(r.Header.Get("If-None-Match"))
	if handler == nil {
		w.Header().Set("Etag", etag)
		w.WriteHeader(http.StatusNotModified)
		return
	}
	handler.ServeHTTP(w, r)
	if etag := w.Header().Get("Etag"); etag != "" {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.etag = etag
	}
}

// get returns the handler, or none if whoever has the document of etag known has the right one. The aggregator is such a one: it asks
// before it answers anybody.
func (d *document) get(known string) (_ http.Handler, etag string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.handler != nil:
		d.letGo.Reset(keep)
	case known != "" && known == d.etag:
		return nil, d.etag
	default:
		d.handler = d.make()
		d.letGo = time.AfterFunc(keep, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.handler = nil
		})
	}
	return d.handler, d.etag
}
