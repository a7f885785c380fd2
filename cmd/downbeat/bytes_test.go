//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/ort"
	"downbeat.dev/frontend"
)

const wordsConfig = `platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "text" data_type: TYPE_STRING dims: [ 2 ] } ]
output [ { name: "twice" data_type: TYPE_STRING dims: [ 4 ] } ]
parameters { key: "slo_ms" value { string_value: "5000" } }
`

// wordsRepository has a model that says its two words twice.
func wordsRepository(t *testing.T) string {
	t.Helper()
	g := onnx.NewBuilder("words")
	text := g.Input("text", onnx.String, onnx.Batched(2))
	g.Output("twice", g.Node("Concat", []string{text, text}, onnx.Int("axis", 1)), onnx.String, onnx.Batched(4))
	m, err := g.Model(13)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	err = errors.Join(os.MkdirAll(filepath.Join(dir, "words", "1"), 0o755),
		os.WriteFile(filepath.Join(dir, "words", "config.pbtxt"), []byte(wordsConfig), 0o644),
		os.WriteFile(filepath.Join(dir, "words", "1", "model.onnx"), m.Marshal(), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestBytesEndToEnd serves a model of strings with ONNX Runtime, by REST and by the library.
func TestBytesEndToEnd(t *testing.T) {
	if _, err := ort.Open(""); errors.Is(err, ort.ErrMissing) {
		t.Skip(err)
	}
	c := config(t)
	c.Emulate, c.Models = 0, wordsRepository(t)
	s := servedWith(t, c)
	ask := func(data string) string {
		t.Helper()
		body := `{"inputs":[{"name":"text","datatype":"BYTES","shape":[2,2],"data":` + data + `}]}`
		w, err := http.Post("http://"+s.Config().HTTP+"/v2/models/words/infer", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer w.Body.Close()
		text, err := io.ReadAll(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		return w.Status + " " + string(text)
	}
	if got := ask(`["a","bc","","größer"]`); !strings.HasPrefix(got, "200") || !strings.Contains(got, `"shape":[2,4],"data":["a","bc","a","bc","","größer","","größer"]`) {
		t.Error(got)
	}
	if got := ask(`["zero\u0000byte","a","\u0000","c"]`); !strings.HasPrefix(got, "200") || !strings.Contains(got, `"data":["zero\u0000byte","a","zero\u0000byte","a","\u0000","c","\u0000","c"]`) {
		t.Error(got)
	}
	if got := ask(`["a","b","c","` + strings.Repeat("x", 70_000) + `"]`); !strings.HasPrefix(got, "400") || !strings.Contains(got, "row 1 has 70009 bytes, the lengths of BYTES elements included: must be at most 65536 (parameter bytes_max") {
		t.Error(got)
	}
	var in []byte
	for _, s := range []string{"Takt", "stock"} {
		in = append(binary.LittleEndian.AppendUint32(in, uint32(len(s))), s...)
	}
	r, err := s.Client().InferCopy(t.Context(), "words", in)
	if err != nil || string(r.Data) != string(in)+string(in) {
		t.Errorf("%q %v", r.Data, err)
	}
	if _, err := s.Client().InferCopy(t.Context(), "words", make([]byte, 1<<20)); !errors.Is(err, frontend.ErrInvalid) {
		t.Errorf("more than a row's room: %v", err)
	}
}
