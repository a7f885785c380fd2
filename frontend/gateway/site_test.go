package gateway

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"downbeat.dev/core/observe"
)

// TestForeignSitesAreRefused shows that without a token no web site in a browser of this host may call the gateway,
// neither under its own host name nor from its own pages.
func TestForeignSitesAreRefused(t *testing.T) {
	c, _ := client(t, compute)
	open, closed := New(c, Options{}), New(c, Options{Token: "secret"})
	t.Cleanup(func() { open.grpc.Stop(); closed.grpc.Stop() })
	ask := func(h http.Handler, method, path, host string, header ...string) int {
		r := httptest.NewRequest(method, path, strings.NewReader(sumBody))
		r.Host = host
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}

	for host, want := range map[string]int{"localhost:8000": 200, "LOCALHOST": 200, "127.0.0.1:8000": 200, "[::1]:8000": 200, "[::1]": 200, "10.1.2.3": 200, "": 200,
		"evil.example": 403, "evil.example:8000": 403, "localhost.evil.example:8000": 403, "127.0.0.1.evil.example": 403} {
		for _, path := range []string{"/v2/downbeat/page", "/v2", "/metrics", "/v2/health/live"} {
			if code := ask(open.rest.Handler, "GET", path, host); code != want {
				t.Errorf("GET %s of %q: %d, want %d", path, host, code, want)
			}
		}
		if code := ask(observe.NewProcess().Handler(""), "GET", "/debug/pprof/", host); code != want {
			t.Errorf("profiles of %q: %d, want %d", host, code, want)
		}
		if code := ask(closed.rest.Handler, "GET", "/v2", host, "Authorization", "Bearer secret"); code != 200 {
			t.Errorf("%q with a token: %d", host, code)
		}
	}

	const infer, host = "/v2/models/sum/infer", "localhost:8000"
	for _, call := range []struct {
		header []string
		want   int
	}{
		{nil, 200},
		{[]string{"Content-Type", "text/plain"}, 200},
		{[]string{"Content-Type", "application/json", "Origin", "http://localhost:8000"}, 200},
		{[]string{"Content-Type", "text/plain", "Origin", "http://evil.example"}, 403},
		{[]string{"Origin", "http://evil.example"}, 403},
		{[]string{"Content-Type", "multipart/form-data", "Origin", "null"}, 403},
		{[]string{"Content-Type", "text/plain", "Origin", "http://localhost:9000"}, 403},
		{[]string{"Content-Type", "text/plain", "Sec-Fetch-Site", "cross-site"}, 403},
		{[]string{"Sec-Fetch-Site", "same-origin", "Origin", "http://localhost:8000"}, 200},
	} {
		if code := ask(open.rest.Handler, "POST", infer, host, call.header...); code != call.want {
			t.Errorf("POST with %v: %d, want %d", call.header, code, call.want)
		}
	}
	if code := ask(closed.rest.Handler, "POST", infer, host, "Origin", "http://evil.example", "Authorization", "Bearer secret"); code != 200 {
		t.Errorf("with a token, from another site: %d", code)
	}
}
