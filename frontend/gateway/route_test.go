package gateway

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
)

// TestCallsAreRoutedAsTheMuxDoes shows that for a path that is served without the mux, the mux would find the same
// handler and model. Paths that the mux would clean or refuse are left to it.
func TestCallsAreRoutedAsTheMuxDoes(t *testing.T) {
	var found string
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v2/models/{model}/infer", func(_ http.ResponseWriter, r *http.Request) { found = r.PathValue("model") })
	mux.HandleFunc("POST /v2/models/{model}/versions/{version}/infer", func(http.ResponseWriter, *http.Request) {})

	direct := 0
	for _, method := range []string{"POST", "GET", "PUT"} {
		for _, path := range []string{"/v2/models/sum/infer", "/v2/models/a:b/infer", "/v2/models//infer", "/v2/models/./infer", "/v2/models/../infer", "/v2/models/a/../infer",
			"/v2/models/infer", "/v2/models/infer/infer", "/v2/models/sum/infer/", "//v2/models/sum/infer", "/v2/models/sum/versions/1/infer", "/v2/models/a%2Fb/infer",
			"/v2/models/a%25b/infer", "/v2/models/%2e%2e/infer", "/v2/models/ü/infer", "/v2/models/.../infer", "/v2/models/sum/generate", "/v2/models/a;b/infer", "/v2/models/a?b/infer"} {
			u, err := url.Parse("http://localhost" + path)
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequest(method, "/", nil)
			r.URL = u

			model := modelOfCall(r)
			if model == "" {
				continue
			}
			direct++
			found = ""
			mux.ServeHTTP(httptest.NewRecorder(), r)
			if found != model {
				t.Errorf("%s %s: model %q without the mux, %q with it", method, path, model, found)
			}
		}
	}
	if direct < 5 {
		t.Errorf("%d paths are served without the mux, want the plain ones", direct)
	}
}
