package repo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/app"
)

// published is the ensemble of Triton's documentation (user_guide/ensemble_models), word for word.
const published = `
name: "ensemble_model"
platform: "ensemble"
max_batch_size: 1
input [
  {
    name: "IMAGE"
    data_type: TYPE_STRING
    dims: [ 1 ]
  }
]
output [
  {
    name: "CLASSIFICATION"
    data_type: TYPE_FP32
    dims: [ 1000 ]
  },
  {
    name: "SEGMENTATION"
    data_type: TYPE_FP32
    dims: [ 3, 224, 224 ]
  }
]
ensemble_scheduling {
  step [
    {
      model_name: "image_preprocess_model"
      model_version: -1
      input_map {
        key: "RAW_IMAGE"
        value: "IMAGE"
      }
      output_map {
        key: "PREPROCESSED_OUTPUT"
        value: "preprocessed_image"
      }
    },
    {
      model_name: "classification_model"
      model_version: -1
      input_map {
        key: "FORMATTED_IMAGE"
        value: "preprocessed_image"
      }
      output_map {
        key: "CLASSIFICATION_OUTPUT"
        value: "CLASSIFICATION"
      }
    },
    {
      model_name: "segmentation_model"
      model_version: -1
      input_map {
        key: "FORMATTED_IMAGE"
        value: "preprocessed_image"
      }
      output_map {
        key: "SEGMENTATION_OUTPUT"
        value: "SEGMENTATION"
      }
    }
  ]
}
`

// emulatedModel returns the config.pbtxt of a model that needs no file.
func emulatedModel(in, inDims, inType, out, outDims string) string {
	return `platform: "emulated" max_batch_size: 8
input { name: "` + in + `" data_type: ` + inType + ` dims: [ ` + inDims + ` ] }
output { name: "` + out + `" data_type: TYPE_FP32 dims: [ ` + outDims + ` ] }
parameters { key: "alpha_ms" value { string_value: "1" } }
parameters { key: "beta_ms" value { string_value: "4" } }
`
}

// writeFiles writes a repository of files by their paths.
func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestTritonsPublishedEnsembleIsAnApplication(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"ensemble_model/config.pbtxt":         published,
		"image_preprocess_model/config.pbtxt": emulatedModel("RAW_IMAGE", "1", "TYPE_STRING", "PREPROCESSED_OUTPUT", "3, 224, 224"),
		"classification_model/config.pbtxt":   emulatedModel("FORMATTED_IMAGE", "3, 224, 224", "TYPE_FP32", "CLASSIFICATION_OUTPUT", "1000"),
		"segmentation_model/config.pbtxt":     emulatedModel("FORMATTED_IMAGE", "3, 224, 224", "TYPE_FP32", "SEGMENTATION_OUTPUT", "3, 224, 224"),
	})
	r, err := Open(dir)
	if err != nil || len(r.Errors) > 0 || len(r.Models) != 3 {
		t.Fatalf("%v, %v", err, r.Errors)
	}

	graphs, refused := r.Graphs()
	if len(refused) > 0 || len(graphs) != 1 {
		t.Fatalf("refused: %v", refused)
	}
	g := graphs[0]
	if g.Name != "ensemble_model" || g.BatchMax != 1 || g.Latency != DefaultSLO || len(g.Steps) != 3 {
		t.Errorf("%+v", g)
	}
	if g.Steps[0].Model != "image_preprocess_model" || len(g.Steps[1].After) != 1 || len(g.Steps[2].After) != 1 || g.Steps[0].Least != 5*time.Millisecond {
		t.Errorf("steps: %+v", g.Steps)
	}
}

// TestEnsemblesAreWrittenInManyWays: as in Triton's tutorials, with a comma between fields of one name, names with
// dots, slashes and colons, and all dimensions left to the models.
func TestEnsemblesAreWrittenInManyWays(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"read_text/config.pbtxt": `name: "read_text" platform: "ensemble" max_batch_size: 256
input [ { name: "picture" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "letters" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
ensemble_scheduling { step [
  { model_name: "find" model_version: -1
    input_map { key: "pixels:0" value: "picture" }
    output_map { key: "net/Conv_7/Sigmoid:0" value: "score:0" },
    output_map { key: "net/concat_3:0" value: "boxes:0" } },
  { model_name: "read" model_version: -1
    input_map { key: "input.1" value: "score:0" }
    output_map { key: "307" value: "letters" } } ] }
`,
		"find/config.pbtxt": emulatedModel("pixels:0", "1000", "TYPE_FP32", "net/Conv_7/Sigmoid:0", "120, 160, 1") + `output { name: "net/concat_3:0" data_type: TYPE_FP32 dims: [ 120, 160, 5 ] }`,
		"read/config.pbtxt": emulatedModel("input.1", "120, 160, 1", "TYPE_FP32", "307", "26, 37"),
	})
	r, err := Open(dir)
	if err != nil || len(r.Errors) > 0 {
		t.Fatalf("%v, %v", err, r.Errors)
	}
	graphs, refused := r.Graphs()
	if len(refused) > 0 || len(graphs) != 1 || len(graphs[0].Steps) != 2 || len(graphs[0].Steps[1].After) != 1 {
		t.Fatalf("%d graphs, refused: %v", len(graphs), refused)
	}
	if in, out := graphs[0].Inputs[0].Shape, graphs[0].Tensors[graphs[0].Answer[0]].Shape; len(in) != 1 || in[0] != 1000 || len(out) != 2 || out[1] != 37 {
		t.Errorf("takes %v, gives %v; want the models' shapes", in, out)
	}
}

func TestEnsemblesAreChecked(t *testing.T) {
	step := "ensemble_scheduling { step { model_name: \"m\" model_version: 1 input_map { key: \"x\" value: \"x\" } output_map { key: \"y\" value: \"y\" } } }"
	const head = "platform: \"ensemble\"" + tail
	if a, err := ParseEnsemble("c", "e", []byte(head+step)); err != nil || a.Stages[0].Version != "1" {
		t.Fatalf("%+v, %v", a, err)
	}

	for name, c := range map[string]struct{ text, want string }{
		"no steps":        {head, `application "e": stages: 0: want 1 to 64`},
		"no model":        {head + "ensemble_scheduling { step { model_version: 1 } }", "c:4:28: ensemble_scheduling.step.model_name: a step needs the name"},
		"bad version":     {head + "ensemble_scheduling { step { model_version: -2 } }", "model_version: -2: want an integer from -1"},
		"unknown field":   {head + "ensemble_scheduling { steps { } }", "ensemble_scheduling.steps: unknown field; want one of step"},
		"other namespace": {head + "ensemble_scheduling { step { model_namespace: \"n\" } }", "model_namespace: \"n\": want one of"},
		"other platform":  {"platform: \"onnxruntime_onnx\"" + tail + step, "platform: \"onnxruntime_onnx\": want one of"},
		"other name":      {"name: \"f\"" + tail + step, `name: "f": want the directory's name "e"`},
		"bad dimension":   {"platform: \"ensemble\" input { name: \"x\" data_type: TYPE_FP32 dims: -2 }", "input.dims: -2: want an integer from 1"},
		"zero latency":    {head + step + "parameters { key: \"slo_ms\" value { string_value: \"0\" } }", "latency: 0s: want more than 0"},
	} {
		if _, err := ParseEnsemble("c", "e", []byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one that says %q", name, err, c.want)
		}
	}
}

// chain is an application of one model and a hook.
const chain = `
latency_ms: 50
inputs: [{name: x, datatype: FP32, shape: [4]}]
stages:
  - {name: first, model: m, inputs: {x: x}, outputs: {y: y}}
  - {name: second, hook: cut, fixed_ms: 0.5, with: {size: "3"}, inputs: {y: y}, gives: [{name: z, datatype: FP32, shape: [2], most: 4}]}
outputs: [{name: z, of: z}]
`

func TestApplicationsAreRead(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"chain/application.yaml": chain,
		"small/application.yaml": strings.Replace(chain, "latency_ms: 50", "latency_ms: 5", 1),
		"bad/application.yaml":   strings.Replace(chain, "latency_ms", "latency", 1),
		"m/config.pbtxt":         emulatedModel("x", "4", "TYPE_FP32", "y", "4") + "parameters { key: \"family\" value { string_value: \"ms\" } }",
	})
	r, err := OpenAll([]string{dir}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Errors) != 1 || r.Errors[0].Model != "bad" || !strings.Contains(r.Errors[0].Error(), "field latency not found") {
		t.Errorf("errors: %v, want one about bad's latency", r.Errors)
	}

	graphs, refused := r.Graphs()
	if len(graphs) != 1 || graphs[0].Name != "chain" || graphs[0].Steps[1].Fixed != 500*time.Microsecond || graphs[0].Tensors[2].Mean != 4 {
		t.Fatalf("%+v", graphs)
	}
	if len(refused) != 1 || refused[0].Model != "small" || !strings.Contains(refused[0].Error(), "want at least 5.5ms") {
		t.Errorf("refused: %v, want that small's latency is too short", refused)
	}

	// A stage may call a family.
	if s, err := r.signatureOf("ms", ""); err != nil || s.Least != 5*time.Millisecond || len(s.Inputs) != 1 {
		t.Errorf("family ms: %+v, %v", s, err)
	}
}

// TestAStageMayKeepSequences shows that the application sets the inputs that clients would set; it has no sequence
// number to give.
func TestAStageMayKeepSequences(t *testing.T) {
	const sequence = `sequence_batching { state [ { input_name: "old" output_name: "new" data_type: TYPE_FP32 dims: [ 2 ] } ] `
	r, err := OpenAll([]string{writeFiles(t, map[string]string{
		"one/application.yaml":    strings.NewReplacer("model: m", "model: kept", "latency_ms: 50", "latency_ms: 500").Replace(chain),
		"number/application.yaml": strings.NewReplacer("model: m", "model: numbered", "latency_ms: 50", "latency_ms: 500").Replace(chain),
		"kept/config.pbtxt":       emulatedModel("x", "4", "TYPE_FP32", "y", "4") + sequence + "}",
		"numbered/config.pbtxt":   emulatedModel("x", "4", "TYPE_FP32", "y", "4") + sequence + `control_input [ { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ] }`,
	})}, Options{})
	if err != nil || len(r.Errors) > 0 {
		t.Fatal(err, r.Errors)
	}

	graphs, refused := r.Graphs()
	if len(graphs) != 1 || !graphs[0].Steps[0].Sequence || len(graphs[0].Steps[0].Inputs) != 1 || len(graphs[0].Steps[0].Outputs) != 1 {
		t.Errorf("%+v: want one application whose first stage keeps sequences, without their tensors", graphs)
	}
	if len(refused) != 1 || !strings.Contains(refused[0].Error(), "want a model that does without a sequence's number") {
		t.Errorf("refused: %v, want the one whose model takes a number", refused)
	}
}

func TestApplicationsAreChecked(t *testing.T) {
	for want, change := range map[string][2]string{
		"field colour not found":                             {"latency_ms: 50", "colour: red"},
		"latency_ms: -1: want milliseconds":                  {"50", "-1"},
		"latency_ms: NaN: want":                              {"50", ".nan"},
		"latency_ms: 1e+300: want":                           {"50", "1e300"},
		"latency: 0s: want more than 0":                      {"50", "0"},
		`"x": datatype "FP31"`:                               {"FP32", "FP31"},
		"most: 10000: want 1 to 1024":                        {"most: 4", "most: 10000"},
		`stage "second": outputs: want gives`:                {"gives: [", "outputs: {y: z}, gives: ["},
		`stage "first": gives: want outputs`:                 {"outputs: {y: y}", "gives: [{name: y}]"},
		"cannot unmarshal":                                   {"[4]", "4"},
		`name: "other": want the directory's name "chain"`:   {"latency_ms", "name: other\nlatency_ms"},
		"more than one document":                             {"outputs: [{name: z, of: z}]", "outputs: [{name: z, of: z}]\n---\nname: y"},
		`stage "second": fixed_ms: +Inf: want milliseconds`:  {"0.5", ".inf"},
		`application "chain": outputs: 0: want one or more`:  {"outputs: [{name: z, of: z}]", ""},
		`application "chain": inputs: 0: want one or more`:   {"inputs: [{name: x, datatype: FP32, shape: [4]}]", ""},
		`stage "second": model and hook: [m cut]: want exac`: {"hook: cut", "model: m, hook: cut"},
	} {
		text := strings.Replace(chain, change[0], change[1], 1)
		if text == chain {
			t.Fatalf("%q changes nothing", change[0])
		}
		if _, err := ParseApplication("a", "chain", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want one that says %q", change, err, want)
		}
	}
}

// TestTrafficFitsTheModels checks the application of this tree against its models.
func TestTrafficFitsTheModels(t *testing.T) {
	r, err := Open("../../models")
	if err != nil {
		t.Fatal(err)
	}
	graphs, refused := r.Graphs()
	if len(refused) > 0 || len(graphs) != 1 || graphs[0].Name != "traffic" {
		t.Fatalf("%v, refused %v", graphs, refused)
	}
}

func FuzzParseApplication(f *testing.F) {
	f.Add([]byte(chain))
	f.Add([]byte(published))
	f.Add([]byte("stages: [{name: &a x, model: *a}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, parse := range []func(string, string, []byte) (app.Application, error){ParseApplication, ParseEnsemble} {
			a, err := parse("f", "chain", text)
			if err != nil {
				continue
			}
			if err := a.CheckNames(); err != nil {
				t.Errorf("accepted, and then %v", err)
			}
			_, _ = app.Resolve(a, (&Repository{}).signatureOf)
		}
	})
}
