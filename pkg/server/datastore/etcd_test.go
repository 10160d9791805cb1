package datastore

import (
	"errors"
	"strings"
	"testing"
)

func TestURLsThatCannotBeMeant(t *testing.T) {
	for _, c := range []struct {
		listen, advertise string
		want              string // a part of the error; "" is none
	}{
		{"http://127.0.0.1:2379", "", ""},
		{"unix:///run/kubase.sock", "https://example.org:2379", ""},
		{"unix://run/kubase.sock", "", "--listen-client-urls"},
		{"127.0.0.1:2379", "", "--listen-client-urls"},
		{"http://127.0.0.1", "", "--listen-client-urls"},
		{"http://127.0.0.1:2379/v3", "", "--listen-client-urls"},
		{"https://127.0.0.1:2379", "", "needs --cert-file and --key-file"},
		{"http://127.0.0.1:2379", "example.org", "--advertise-client-urls"},
	} {
		o := NewEtcdOptions()
		o.Datastore.DSN = "sqlite:///kubase.db"
		o.ListenClientURLs = []string{c.listen}
		if c.advertise != "" {
			o.AdvertiseClientURLs = []string{c.advertise}
		}
		err := errors.Join(o.Validate()...)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s, advertised as %q: got %v, want an error with %q", c.listen, c.advertise, err, c.want)
		}
	}
}
