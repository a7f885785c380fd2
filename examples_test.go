//go:build linux

package downbeat_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestExamplesAsStrangers: each example compiles in a module of its own, whose only tie to this one is a replace
// directive. Three run, too: their requests may take their time.
func TestExamplesAsStrangers(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: examples are not linked")
	}
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	type run struct {
		args []string // none: it is not run
		says string
	}
	models := filepath.Join(root, "examples", "models")
	runs := map[string]run{"client": {}, "ownmodel": {}, "preprocess": {}, "cluster": {[]string{"-models", models}, "three processes: answered"},
		"embed":   {[]string{"-models", models, "-deadline", "30s"}, "3 scores"},
		"cameras": {[]string{"-models", filepath.Join(root, "models"), "-emulate", "1", "-for", "1s"}, "camera 4"}}
	modules, err := filepath.Glob("examples/*/go.mod")
	if err != nil || len(modules) != len(runs) {
		t.Fatalf("%v, %v; the test knows of %d", modules, err, len(runs))
	}

	for name, run := range runs {
		t.Run(name, func(t *testing.T) {
			dir, program := strangersModule(t, root, name), filepath.Join(t.TempDir(), name)
			action := []string{"vet", "-mod=mod", "."}
			if run.args != nil {
				action = []string{"build", "-mod=mod", "-o", program, "."}
			}
			build := exec.Command("go", action...)
			build.Dir, build.Env = dir, append(os.Environ(), "GOPROXY=off", "GOWORK=off")
			if text, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			if run.args == nil {
				return
			}
			text, err := exec.Command(program, run.args...).CombinedOutput()
			if err != nil || !bytes.Contains(text, []byte(run.says)) {
				t.Errorf("%v: %s: want %q in it", err, text, run.says)
			}
		})
	}
}

// strangersModule copies an example elsewhere. "go mod tidy" would look up what the module requires besides; what this one
// requires is known to suffice.
func strangersModule(t *testing.T, root, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(root, "examples", name))); err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	own, ours := read(filepath.Join(dir, "go.mod")), read(filepath.Join(root, "go.mod"))
	if !strings.Contains(own, "replace downbeat.dev => ../..\n") || !strings.HasPrefix(own, "module example.com/"+name+"\n") {
		t.Errorf("examples/%s/go.mod: %s", name, own)
	}
	_, requires, _ := strings.Cut(ours, "\nrequire")
	own = strings.Replace(own, "=> ../..", fmt.Sprintf("=> %s", root), 1) + "\nrequire" + requires
	for path, text := range map[string]string{"go.mod": own, "go.sum": read(filepath.Join(root, "go.sum"))} {
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
