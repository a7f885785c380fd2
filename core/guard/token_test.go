package guard

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestTokenOpensAllButHealth: without a token, only calls that need none are answered; and a browser's foreign sites
// are refused where no token is required.
func TestTokenOpensAllButHealth(t *testing.T) {
	isOpen := func(path string) bool { return path == "/health" }
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	closed, open := RequireToken("secret", isOpen, served), RequireToken("", isOpen, served)

	for _, c := range []struct {
		h                   http.Handler
		path, host, bearing string
		want                int
	}{
		{closed, "/health", "evil.example", "", 200},
		{closed, "/rest", "localhost", "", 401},
		{closed, "/rest", "localhost", "Bearer secre", 401},
		{closed, "/rest", "localhost", "secret", 401},
		{closed, "/rest", "evil.example", "Bearer secret", 200},
		{open, "/rest", "localhost:8000", "", 200},
		{open, "/health", "evil.example", "", 403},
	} {
		r := httptest.NewRequest("GET", c.path, nil)
		r.Host = c.host
		r.Header.Set("Authorization", c.bearing)
		w := httptest.NewRecorder()
		c.h.ServeHTTP(w, r)
		if w.Code != c.want || c.want == 401 && w.Header().Get("WWW-Authenticate") == "" {
			t.Errorf("%s of %s with %q: %d, want %d", c.path, c.host, c.bearing, w.Code, c.want)
		}
	}
}
