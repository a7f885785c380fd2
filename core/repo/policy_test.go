package repo

import (
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestQueuePolicyBecomesDeadlines shows that the times and limits of Triton's queue policy become the SLO and the
// queue limit.
func TestQueuePolicyBecomesDeadlines(t *testing.T) {
	const policy = `platform: "onnxruntime_onnx" max_batch_size: 8 dynamic_batching { priority_levels: 4 default_priority_level: 3
default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 30000 allow_timeout_override: true max_queue_size: 16 } }`
	c, err := ParseConfig("c", []byte(policy+tail))
	if err != nil || len(c.Warnings) > 0 {
		t.Fatalf("%v %q", err, c.Warnings)
	}
	if c.SLO != 30*time.Millisecond || !c.SLOBinds || c.Batching.QueueMax != 16 || c.Batching.Priority() != 253 {
		t.Errorf("%+v, priority %d", c, c.Batching.Priority())
	}
	c, err = ParseConfig("c", []byte(policy+tail+`parameters { key: "slo_ms" value { string_value: "50" } }`))
	if err != nil || c.SLO != 50*time.Millisecond || c.SLOBinds {
		t.Errorf("an SLO of its own: %+v, %v", c, err)
	}
}

func TestChecksums(t *testing.T) {
	sum := md5.Sum([]byte("graph"))
	config := `platform: "onnxruntime_onnx" model_repository_agents { agents { name: "checksum" parameters { key: "MD5:1/model.onnx" value: "` + hex.EncodeToString(sum[:]) + `" } } }` + tail
	dir := write(t, map[string]string{"good/config.pbtxt": config, "good/1/model.onnx": "graph", "bad/config.pbtxt": config, "bad/1/model.onnx": "grapf"})
	r, err := Open(dir)
	if err != nil || len(r.Models) != 1 || r.Models[0].Name != "good" || len(r.Errors) != 1 || !strings.Contains(r.Errors[0].Error(), "MD5 of 1/model.onnx: the file has") {
		t.Errorf("%+v %v", r, err)
	}
}

// TestGraphsCompleteConfigurations shows that the file provides what config.pbtxt omits, unless the repository is
// strict.
func TestGraphsCompleteConfigurations(t *testing.T) {
	graphs := map[string]Graph{
		"batched": {Inputs: []GraphTensor{{"x", "FP32", []int64{-1, 4}}}, Outputs: []GraphTensor{{"y", "INT64", []int64{-1, 2, 2}}}},
		"fixed":   {Inputs: []GraphTensor{{"x", "FP32", []int64{4}}}, Outputs: []GraphTensor{{"y", "FP32", []int64{-1}}}},
		"whole":   {Inputs: []GraphTensor{{"x", "FP32", []int64{3, 4}}}, Outputs: []GraphTensor{{"y", "FP32", []int64{3}}}},
		"scalar":  {Inputs: []GraphTensor{{"x", "FP32", nil}}, Outputs: []GraphTensor{{"y", "FP32", []int64{3}}}},
		"rows":    {Inputs: []GraphTensor{{"x", "FP32", []int64{-1}}}, Outputs: []GraphTensor{{"y", "FP32", []int64{-1, 3}}}},
		"strange": {Inputs: []GraphTensor{{"x", "", []int64{3}}}, Outputs: []GraphTensor{{"y", "FP32", []int64{3}}}},
	}
	o := Options{Graph: func(path string) (Graph, error) {
		text, err := os.ReadFile(path)
		return graphs[string(text)], err
	}}
	dir := write(t, map[string]string{
		"alone/1/model.onnx": "batched", "whole/1/model.onnx": "whole", "fixed/1/model.onnx": "fixed", "strange/1/model.onnx": "strange", "scalar/1/model.onnx": "scalar", "rows/1/model.onnx": "rows",
		"slo/1/model.onnx": "batched", "slo/config.pbtxt": `parameters { key: "slo_ms" value { string_value: "7" } }`,
		"half/1/model.onnx": "batched", "half/config.pbtxt": `max_batch_size: 3 input { name: "x" data_type: TYPE_FP32 dims: 4 }`,
	})
	r, err := OpenWith(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"alone": "16 true [4] INT64 [2 2]", "fixed": "1 false [4] FP32 [-1]", "scalar": "1 false [1] FP32 [3]", "rows": "16 true [1] FP32 [3]", "whole": "1 false [3 4] FP32 [3]", "slo": "16 true [4] INT64 [2 2]", "half": "3 true [4] INT64 [2 2]",
	} {
		m, err := r.Find(name, "")
		if err != nil {
			t.Errorf("%s: %v; %v", name, err, r.Errors)
			continue
		}
		if got := describe(m); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if m, err := r.Find("slo", ""); err != nil || m.SLO != 7*time.Millisecond {
		t.Errorf("%+v %v", m, err)
	}
	text := errorTexts(r)
	for _, want := range []string{`input "x": its type is not one of the protocol's`} {
		if !strings.Contains(text, want) {
			t.Errorf("errors %s, want %s", text, want)
		}
	}

	if r, err = Open(dir); err != nil || len(r.Models) != 0 {
		t.Errorf("strict: %+v %v", r, err)
	}
}

// TestSeveralRepositories shows that several repositories are served as one, except a model that two of them have.
func TestSeveralRepositories(t *testing.T) {
	const config = "platform: \"onnxruntime_onnx\"" + tail
	a := write(t, map[string]string{"m/config.pbtxt": config, "m/1/model.onnx": "x", "both/config.pbtxt": config, "both/1/model.onnx": "x"})
	b := write(t, map[string]string{"k/config.pbtxt": config, "k/1/model.onnx": "x", "both/config.pbtxt": "nonsense"})
	r, err := OpenAll([]string{a, b}, Options{})
	if err != nil || strings.Join(r.Names(), " ") != "k m" || !strings.Contains(errorTexts(r), "is in "+a+" and in "+b) {
		t.Errorf("%v %v %v", r.Names(), errorTexts(r), err)
	}
	if _, err := OpenAll([]string{a, filepath.Join(b, "none")}, Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a repository that is not there: %v, want one that says so", err)
	}
}

func describe(m *Model) string {
	return fmt.Sprint(m.BatchMax, " ", m.Batched, " ", m.Inputs[0].Shape, " ", m.Outputs[0].Datatype, " ", m.Outputs[0].Shape)
}

func errorTexts(r *Repository) string {
	text := ""
	for _, e := range r.Errors {
		text += e.Error() + "\n"
	}
	return text
}
