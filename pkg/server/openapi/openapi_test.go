package openapi

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

const etag = `"ABC"`

// made counts the handlers that a document makes.
func made() (*document, *int) {
	count := 0
	return &document{make: func() http.Handler {
		count++
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Etag", etag)
			if r.Header.Get("If-None-Match") == etag {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			_, _ = w.Write([]byte("document"))
		})
	}}, &count
}

func ask(t *testing.T, d *document, known string, wantCode int) {
	t.Helper()
	request := httptest.NewRequest(http.MethodGet, v2Path, nil)
	if known != "" {
		request.Header.Set("If-None-Match", known)
	}
	response := httptest.NewRecorder()
	d.ServeHTTP(response, request)
	if response.Code != wantCode || response.Header().Get("Etag") != etag {
		t.Errorf("the answer is %d with the Etag %s, want %d and %s", response.Code, response.Header().Get("Etag"), wantCode, etag)
	}
	if want := map[int]string{http.StatusOK: "document"}[wantCode]; response.Body.String() != want {
		t.Errorf("the body is %q, want %q", response.Body, want)
	}
}

func TestDocumentIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		document, count := made()
		for range 3 { // each time within the time that the last request gave it
			ask(t, document, "", http.StatusOK)
			time.Sleep(keep - time.Second)
		}
		if *count != 1 {
			t.Errorf("the handler of a document in use was made %d times, want once", *count)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if document.handler != nil {
			t.Error("the handler is kept after nobody asked for a minute")
		}
		ask(t, document, "", http.StatusOK)
		if *count != 2 {
			t.Errorf("the handler was made %d times, want again after it was let go", *count)
		}
		time.Sleep(2 * keep) // the timer ends within the bubble
	})
}

func TestKnownDocumentIsNotMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		document, count := made()
		ask(t, document, etag, http.StatusNotModified) // nobody has the Etag yet, so the handler says it
		time.Sleep(2 * keep)
		ask(t, document, etag, http.StatusNotModified)
		if *count != 1 {
			t.Errorf("the handler was made %d times, want no second time for who knows the document", *count)
		}
		ask(t, document, `"old"`, http.StatusOK)
		if *count != 2 {
			t.Errorf("the handler was made %d times, want again for who knows another document", *count)
		}
		time.Sleep(2 * keep)
	})
}
