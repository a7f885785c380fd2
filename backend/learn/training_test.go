package learn

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"downbeat.dev/models"
)

// TestDeclarationsSurviveTheDisk shows that every classifier of the tree can be declared, and that reading returns
// the same declaration.
func TestDeclarationsSurviveTheDisk(t *testing.T) {
	for _, r := range models.Recipes() {
		about, err := DescribeNet(r.Structure())
		if r.Family == "detector" {
			if err == nil || !strings.Contains(err.Error(), "only classifiers are trained") {
				t.Errorf("%s: a detector was described: %v", r.Name(), err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}

		about.Batch, about.Teacher, about.Every, about.Mirror = 8, "vehicle-l", 3, true
		h, w := r.Size()
		initial := []Sample{{Input: make([]byte, h*w*3), Class: 1}, {Input: []byte(strings.Repeat("x", h*w*3))}}
		dir := t.TempDir()
		if err := WriteTraining(dir, about, initial); err != nil {
			t.Fatal(err)
		}
		got, samples, declared, err := ReadTraining(dir)
		if err != nil || !declared || !reflect.DeepEqual(got, about) || !reflect.DeepEqual(samples, initial) {
			t.Errorf("%s: read %+v, declared %v, %v", r.Name(), got, declared, err)
		}
		net, err := got.Net(r.Name())
		if err != nil || net.Cost() != r.Structure().Cost() {
			t.Errorf("%s: a net of %+v, %v; want %+v", r.Name(), net.Cost(), err, r.Structure().Cost())
		}
	}
}

func TestBadDeclarationsAreRefused(t *testing.T) {
	const good = `{"height": 2, "width": 2, "classes": 2, "layers": [{"flatten": true}, {"dense": {"out": 2, "linear": true}}]}`
	one := string(make([]byte, 4+2*2*3))
	for _, c := range []struct{ about, samples, want string }{
		{`{`, one, "training.json"},
		{good, "", "0 bytes"},
		{good, one + "x", "17 bytes"},
		{good, "\x02" + one[1:], "class 2, want 0 to 1"},
		{strings.Replace(good, `"height": 2`, `"height": 0`, 1), one, "height, width: 0, 2"},
		{strings.Replace(good, `"flatten": true`, `"conv": {"out": 1}`, 1), one, "layer 0"},
		{strings.Replace(good, `"classes": 2`, `"classes": 1`, 1), one, "classes: 1"},
		{strings.Replace(good, `{"flatten": true}, {"dense": {"out": 2, "linear": true}}`, ``, 1), one, "layers: none"},
		{strings.Replace(good, `"layers"`, `"exits": [{"after": 1, "layers": [{}]}], "layers"`, 1), one, "exits 0: layer 0"},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{trainingFile: c.about, samplesFile: c.samples} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		about, _, declared, err := ReadTraining(dir)
		if err == nil {
			_, err = about.Net("m")
		}
		if !declared || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %d bytes of samples: %v, want an error with %q", c.about, len(c.samples), err, c.want)
		}
	}
	if _, _, declared, err := ReadTraining(t.TempDir()); declared || err != nil {
		t.Errorf("a directory that says nothing: declared %v, %v", declared, err)
	}
}
