package gateway

import (
	"net/http"
	"strings"
	"testing"
)

// TestConformanceGenerate: the generate extension, point by point.
func TestConformanceGenerate(t *testing.T) {
	server, _ := rest(t, Options{})
	for _, c := range []struct {
		path, body string
		code       int
		want       string
	}{
		{"text/generate", `{"in":"hello"}`, 200, `{"model_name":"text","model_version":"3","out":"\u003chello\u003e"}`},
		{"text/generate", `{"in":["hello"],"id":"7","other":{"a":[1]}}`, 200, `{"model_name":"text","model_version":"3","id":"7","out":"\u003chello\u003e"}`},
		{"text/versions/3/generate", `{"parameters":{"in":"nested","temperature":0.5,"timeout":5000000,"priority":1}}`, 200, `"out":"\u003cnested\u003e"}`},
		{"text/generate_stream", `{"in":"hello"}`, 200, "data: " + `{"model_name":"text","model_version":"3","out":"\u003chello\u003e"}` + "\n\n"},
		{"sum/generate", `{"a":[1,2],"b":[3,100]}`, 200, `"sum":[4,102],"big":[false,true]}`},
		{"whole/generate", `{"in":[[1,2,3],[4,5,6]]}`, 200, `"out":[1,2,3,4,5,6]}`},

		{"sum/generate", `{"a":[1,2]}`, 400, "inputs: 1 tensors: must be 2"},
		{"sum/generate", `{"a":[1,2],"b":[3]}`, 400, `input \"b\": 4 bytes of data`},
		{"sum/generate", `{"a":[1,2],"b":3}`, 400, `input \"b\": 4 bytes of data`},
		{"sum/generate", `{"a":[1,2],"a":[1,2],"b":[3,4]}`, 400, "inputs: 3 tensors"},
		{"sum/generate", `{"a":[1,2],"b":["x",4]}`, 400, `input \"b\"`},
		{"sum/generate", `{"a":[1,2],"b":[3,4`, 400, "body: JSON at byte"},
		{"sum/generate", `[1]`, 400, "body: JSON at byte 0"},
		{"text/generate", `{"in":null}`, 400, "inputs: 0 tensors"},
		{"text/generate", `{"in":"x","parameters":{"timeout":"soon"}}`, 400, "parameter timeout"},
		{"text/generate", `{"in":"x","parameters":{"sequence_id":5}}`, 400, "the model keeps no sequences"},
		{"text/generate", `{"in":"x","id":5}`, 400, "body"},
		{"nope/generate", `{}`, 404, "Request for unknown model: 'nope'"},
		{"idle/generate_stream", `{"x":1}`, 503, "error"},
	} {
		code, header, text := call(t, "POST", server.URL+"/v2/models/"+c.path, strings.NewReader(c.body))
		if code != c.code || !strings.Contains(string(text), c.want) {
			t.Errorf("%s %s: %d %s, want %d %s", c.path, c.body, code, text, c.code, c.want)
		}
		if want := map[bool]string{true: "text/event-stream", false: "application/json"}[code == http.StatusOK && strings.HasSuffix(c.path, "_stream")]; header.Get("Content-Type") != want {
			t.Errorf("%s: content type %q, want %q", c.path, header.Get("Content-Type"), want)
		}
	}
	if code, header, _ := call(t, "GET", server.URL+"/v2/models/text/generate", nil); code != http.StatusMethodNotAllowed || header.Get("Allow") != "POST" {
		t.Errorf("GET: %d, allowed %q", code, header.Get("Allow"))
	}
}
