//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"downbeat.dev/backend/onnx"
)

// example is a block of code of a page and what stands under it.
type example struct{ language, code, want string }

var exampleBlocks = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```\n(?:```text\n(.*?)^```\n)?")

var pythonImports = regexp.MustCompile(`(?m)^(?:import|from) .*$`)

// command runs an example; nil: what it needs is not on this host.
func (e example) command(t *testing.T) *exec.Cmd {
	t.Helper()
	tool := map[string]string{"sh": "curl", "python": "python3", "js": "node", "go": "go"}[e.language]
	if tool == "" {
		t.Fatalf("an example in %q: nobody knows how to run it", e.language)
	}
	if _, err := exec.LookPath(tool); err != nil {
		return nil
	}

	if e.language == "python" && !e.hasPackages(t) {
		return nil
	}

	path := filepath.Join(t.TempDir(), "main."+map[string]string{"sh": "sh", "python": "py", "js": "mjs", "go": "go"}[e.language])
	if err := os.WriteFile(path, []byte(e.code), 0o600); err != nil {
		t.Fatal(err)
	}
	switch e.language {
	case "sh":
		return exec.CommandContext(t.Context(), "sh", path)
	case "go":
		return exec.CommandContext(t.Context(), "go", "run", path) // in this module
	}
	return exec.CommandContext(t.Context(), tool, path)
}

// hasPackages tells whether what a Python example imports is installed.
func (e example) hasPackages(t *testing.T) bool {
	imports := strings.Join(pythonImports.FindAllString(e.code, -1), "\n")
	out, err := exec.CommandContext(t.Context(), "python3", "-c", imports).CombinedOutput()
	if err != nil && !strings.Contains(string(out), "ModuleNotFoundError") {
		t.Errorf("%s\n%v: %s", imports, err, out)
	}
	return err == nil
}

// TestClients runs the examples of docs/CLIENTS.md and compares what they print with what it says.
func TestClients(t *testing.T) {
	simple := graph(t, "simple", func(g *onnx.Builder) {
		a, b := g.Input("INPUT0", onnx.Int32, onnx.Batched(16)), g.Input("INPUT1", onnx.Int32, onnx.Batched(16))
		g.Output("OUTPUT0", g.Node("Add", []string{a, b}), onnx.Int32, onnx.Batched(16))
		g.Output("OUTPUT1", g.Node("Sub", []string{a, b}), onnx.Int32, onnx.Batched(16))
	})
	photo := graph(t, "photo", func(g *onnx.Builder) {
		in := g.Input("image", onnx.Uint8, onnx.Batched(2, 2, 3))
		g.Output("pixels", g.Node("Identity", []string{in}), onnx.Uint8, onnx.Batched(2, 2, 3))
	})
	const pictured = slow + `parameters { key: "picture" value { string_value: "image" } }`
	runExamples(t, "../../docs/CLIENTS.md", writeRepository(t, file{"simple/1/model.onnx", simple}, file{"simple/config.pbtxt", []byte(slow)},
		file{"photo/1/model.onnx", photo}, file{"photo/config.pbtxt", []byte(pictured)}))
}

// TestApplications does the same for docs/APPLICATIONS.md, with the models of the tree.
func TestApplications(t *testing.T) { runExamples(t, "../../docs/APPLICATIONS.md", "../../models") }

// runExamples runs a page's examples against a model repository.
func runExamples(t *testing.T, page, models string) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	p := serveReal(t, models, nil)
	here := strings.NewReplacer("localhost:8000", p.Config().HTTP, "localhost:8001", p.Config().GRPC)

	ran := 0
	for _, m := range exampleBlocks.FindAllStringSubmatch(string(text), -1) {
		e := example{m[1], here.Replace(m[2]), strings.TrimSpace(m[3])}
		if e.want == "" {
			t.Errorf("an example without its output:\n%s", e.code)
			continue
		}
		run := e.command(t)
		if run == nil {
			t.Logf("not run, its tools are not installed here:\n%s", e.code)
			continue
		}
		out, err := run.CombinedOutput()
		if err != nil || !strings.Contains(string(out), e.want) {
			t.Errorf("%s\n%v, printed:\n%s\nwant:\n%s", e.code, err, out, e.want)
		}
		ran++
	}
	if ran == 0 {
		t.Error("no example was run")
	}
}
