package repo

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func param(key, value string) string {
	return "parameters { key: \"" + key + "\" value { string_value: \"" + value + "\" } }\n"
}

// exitRepository returns a repository with a model in two versions, the second written by a learner, and its exit.
func exitRepository(t *testing.T, exit string) string {
	return write(t, map[string]string{
		"m/config.pbtxt":      good + param("family", "f") + param("accuracy", "0.9"),
		"m/1/model.onnx":      "x",
		"m/2/model.onnx":      "x",
		"m/2/learned.json":    `{"from": 1, "exit_gaps": [0.2, 0.05]}`,
		"m-exit/config.pbtxt": exit,
	})
}

const goodExit = good + `parameters { key: "family" value { string_value: "f" } } parameters { key: "accuracy" value { string_value: "0.8" } }
parameters { key: "exit_of" value { string_value: "m" } } parameters { key: "exit_stage" value { string_value: "2" } }`

// TestAnExitRunsItsModelsFile shows that an exit has its model's versions and file, but its own profile, and that the
// accuracy of a learned version is the judged one.
func TestAnExitRunsItsModelsFile(t *testing.T) {
	dir := exitRepository(t, goodExit)
	r, err := Open(dir)
	if err != nil || len(r.Errors) > 0 {
		t.Fatal(err, r.Errors)
	}
	m, err := r.Find("m-exit", "")
	if err != nil {
		t.Fatal(err)
	}
	if m.Version != "2" || m.ExitStage != 2 || m.ONNXPath != filepath.Join(dir, "m", "2", "model.onnx") {
		t.Errorf("%+v", m)
	}
	info := m.Info()
	if info.ExitOf != "m" || info.Accuracy < 0.8499 || info.Accuracy > 0.8501 {
		t.Errorf("exit of %q, accuracy %v: want m and 0.9 less the gap of 0.05", info.ExitOf, info.Accuracy)
	}

	p := Profile{Host: "h", TableNS: []time.Duration{5, 6}}
	if err := m.SetProfile(p); err != nil {
		t.Fatal(err)
	}
	if r, err = Open(dir); err != nil || len(r.Errors) > 0 {
		t.Fatal(err, r.Errors)
	}
	if m, err = r.Find("m-exit", "2"); err != nil || len(m.Profiles) != 1 || m.Profiles[0].Host != "h" {
		t.Errorf("profile: %v, %+v", err, m)
	}
	if of, err := ExitsOf(dir, "m"); err != nil || !reflect.DeepEqual(of, []string{"m-exit"}) {
		t.Errorf("exits of m: %v, %v", of, err)
	}

	// A new file of the model is a new exit.
	before, err := Scan([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "m", "2", "model.onnx"), []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	after, err := Scan([]string{dir})
	if err != nil || after["m-exit"] == before["m-exit"] {
		t.Errorf("the exit's stamp stays when its model's file changes: %v", err)
	}
}

// TestAnExitThatWasNotJudgedDoesNotServe: after its model has learned, the exit's accuracy is not known.
func TestAnExitThatWasNotJudgedDoesNotServe(t *testing.T) {
	dir := exitRepository(t, goodExit)
	if err := os.WriteFile(filepath.Join(dir, "m", "2", "learned.json"), []byte(`{"from": 1}`), 0o644); err != nil {
		t.Fatal(err)
	}
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Errors) != 1 || !strings.Contains(r.Errors[0].Error(), "none for exit 2: it was not judged after its model learnt") {
		t.Errorf("%v", r.Errors)
	}
	if _, err := r.Find("m", "2"); err != nil {
		t.Errorf("its model does not serve either: %v", err)
	}
}

func TestBadExitsAreRefused(t *testing.T) {
	of := func(more string) string { return good + param("family", "f") + more }
	for want, exit := range map[string]string{
		": want exit_stage, too: which of the model's exits":         of(param("exit_of", "m")),
		": want exit_of, too: the model that it is an exit of":       of(param("exit_stage", "1")),
		`parameters.exit_stage: "17": want 1 to 16`:                  of(param("exit_of", "m") + param("exit_stage", "17")),
		`parameters.exit_of: "../m": want the name of another model`: of(param("exit_of", "../m") + param("exit_stage", "1")),
		`"x": no such model`: of(param("exit_of", "x") + param("exit_stage", "1")),
		`"m": its family is "f": an exit is of the same, not of ""`:    good + param("exit_of", "m") + param("exit_stage", "1"),
		"version_policy: an exit's versions are those of the model":    of("version_policy { all {} }" + param("exit_of", "m") + param("exit_stage", "1")),
		"its max_batch_size is 8: an exit has as much or less, not 16": strings.Replace(of(param("exit_of", "m")+param("exit_stage", "1")), "max_batch_size: 8", "max_batch_size: 16", 1),
		"its inputs and outputs are others":                            strings.Replace(of(param("exit_of", "m")+param("exit_stage", "1")), "TYPE_FP32", "TYPE_FP16", 1),
	} {
		r, err := Open(exitRepository(t, exit))
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Errors) != 1 || !strings.Contains(r.Errors[0].Error(), want) {
			t.Errorf("got %v, want …%s…", r.Errors, want)
		}
	}
}
