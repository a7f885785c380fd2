package models

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"downbeat.dev/backend/ort"
	"downbeat.dev/core/repo"
	"downbeat.dev/models/scene"
)

// TestRepositoryInTheTree checks the committed models: complete, consistent and small.
func TestRepositoryInTheTree(t *testing.T) {
	var out bytes.Buffer
	if err := Check(t.Context(), &out, ".", -1, ""); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	r, err := repo.Open(".")
	if err != nil {
		t.Fatal(err)
	}
	var size int64
	for _, recipe := range Recipes() {
		m, err := r.Find(recipe.Name(), "")
		if err != nil {
			t.Error(err)
			continue
		}
		info, err := os.Stat(m.ONNXPath)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
		if got := m.Labels("scores"); strings.Join(got, " ") != strings.Join(recipe.Labels(), " ") {
			t.Errorf("%s: labels %v, want %v", m.Name, got, recipe.Labels())
		}
	}
	// A request of the application has 3·3·9 structures without -s and -m of the detector and the activity model.
	for family, want := range map[string]int{"detector": 5, "vehicle": 9, "activity": 5} {
		found := 0
		for i := range r.Models {
			if r.Models[i].Config.Family == family {
				found++
			}
		}
		if found != want {
			t.Errorf("%s: %d variants, want %d", family, found, want)
		}
	}
	if size > 8<<20 {
		t.Errorf("the models take %d bytes; at most 8 MiB are to be committed", size)
	}
}

// TestAccuracyInTheTree measures a part of what README.md claims.
func TestAccuracyInTheTree(t *testing.T) {
	if _, err := ort.Open(""); errors.Is(err, ort.ErrMissing) {
		t.Skip(err)
	}
	var out bytes.Buffer
	if err := Check(t.Context(), &out, ".", 192, ""); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// TestMakeIsReproducible trains two small models for a few steps, twice.
func TestMakeIsReproducible(t *testing.T) {
	if _, err := ort.Open(""); errors.Is(err, ort.ErrMissing) {
		t.Skip(err)
	}
	var files [2][]byte
	for i := range files {
		dir := t.TempDir()
		err := Make(t.Context(), Options{Dir: dir, Only: "vehicle-s,detector-s", Seed: 5, Parallel: 2, Effort: 0.002, HeldOut: 32, Report: func(string) {}})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"vehicle-s", "detector-s"} {
			b, err := os.ReadFile(filepath.Join(dir, name, "1", "model.onnx"))
			if err != nil {
				t.Fatal(err)
			}
			files[i] = append(files[i], b...)
		}
		readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
		if err != nil || !strings.Contains(string(readme), "| vehicle-s | image 32×48×3 | scores 6 |") {
			t.Errorf("README.md: %v\n%s", err, readme)
		}
		var said bytes.Buffer
		if err := Check(t.Context(), &said, dir, -1, ""); err != nil {
			t.Log(said.String())
			t.Error(err)
		}
	}
	if !bytes.Equal(files[0], files[1]) {
		t.Error("the same seed gave different files")
	}
}

func TestMakeRefuses(t *testing.T) {
	for want, o := range map[string]Options{
		`no recipe "detector-xl"; there are detector-s`: {Only: "detector-xl", Effort: 1},
		"effort: 0: want above 0":                       {},
	} {
		if err := Make(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want …%s…", err, want)
		}
	}
	if _, err := ort.Open(""); errors.Is(err, ort.ErrMissing) {
		return
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Make(ctx, Options{Dir: t.TempDir(), Effort: 1, Report: func(string) {}}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// answer turns a grid target into what a perfect detector would answer.
func answer(target []float32) (scores, boxes []float32) {
	const plane = cells * cells
	for i := range plane {
		for k := range int(kinds) {
			scores = append(scores, target[i]*target[(1+k)*plane+i])
		}
		at := func(k int) float64 { return float64(target[(1+int(kinds)+k)*plane+i]) }
		cx, cy := (float64(i%cells)+at(0))/cells, (float64(i/cells)+at(1))/cells
		w, h := math.Exp(at(2)), math.Exp(at(3))
		for _, v := range []float64{cx - w/2, cy - h/2, cx + w/2, cy + h/2} {
			boxes = append(boxes, float32(v))
		}
	}
	return scores, boxes
}

// TestPerfectAnswersScoreOne takes targets for answers: coding and decoding must agree, but for
// objects whose centres share a cell.
func TestPerfectAnswersScoreOne(t *testing.T) {
	r, _ := Find("detector-s")
	paint, pixels := NewPainter(), make([]byte, detectorSize*detectorSize*3)
	target := make([]float32, (6+kinds)*cells*cells)
	p := &precision{}
	for i := range uint64(200) {
		truth, err := r.Draw(paint, 3, i, nil, pixels)
		if err != nil {
			t.Fatal(err)
		}
		gridTarget(truth.Objects, target)
		scores, boxes := answer(target)
		found, err := Decode(scores, boxes, int(kinds), 0.5, detectorSize, detectorSize)
		if err != nil {
			t.Fatal(err)
		}
		p.addImage(found, truth.Objects)
	}
	if m := p.meanPrecision(); m < 0.97 || m > 1+1e-9 {
		t.Errorf("mean average precision %v of perfect answers", m)
	}
}

func TestPrecisionCountsMistakes(t *testing.T) {
	box := scene.Rect{X0: 0, Y0: 0, X1: 10, Y1: 10}
	object := scene.Object{Kind: scene.Car, Box: box, Visible: 1, Inside: 1}
	hidden := scene.Object{Kind: scene.Car, Box: scene.Rect{X0: 50, Y0: 50, X1: 60, Y1: 60}, Visible: 0.1, Inside: 1}
	found := func(score float32, b scene.Rect) Detection { return Detection{int(scene.Car), score, b} }
	wrong := scene.Rect{X0: 30, Y0: 30, X1: 40, Y1: 40}
	for _, c := range []struct {
		name  string
		found []Detection
		want  float64
	}{
		{"found", []Detection{found(0.9, box)}, 1},
		{"nothing", nil, 0},
		{"a better-scored mistake first", []Detection{found(0.9, wrong), found(0.8, box)}, 0.5},
		{"a worse-scored mistake after", []Detection{found(0.9, box), found(0.8, wrong)}, 1},
		{"found twice", []Detection{found(0.9, box), found(0.8, box)}, 1},
		{"the hidden one costs nothing", []Detection{found(0.95, hidden.Box), found(0.9, box)}, 1},
		{"wrong kind", []Detection{{int(scene.Bus), 0.9, box}}, 0},
	} {
		p := &precision{}
		p.addImage(c.found, []scene.Object{object, hidden})
		if got := p.meanPrecision(); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestDecode(t *testing.T) {
	scores := []float32{0.9, 0.1, 0.8, 0, 0.3, 0.7}
	boxes := []float32{0, 0, 0.5, 0.5, 0.01, 0, 0.5, 0.5, 0.5, 0.5, 1, 1}
	got, err := Decode(scores, boxes, 2, 0.5, 100, 200)
	want := []Detection{{0, 0.9, scene.Rect{X0: 0, Y0: 0, X1: 50, Y1: 100}}, {1, 0.7, scene.Rect{X0: 50, Y0: 100, X1: 100, Y1: 200}}}
	if err != nil || len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if _, err := Decode(scores, boxes[:8], 2, 0.5, 1, 1); err == nil || !strings.Contains(err.Error(), "6 scores and 8 box values") {
		t.Errorf("missing boxes were accepted: %v", err)
	}
	if _, err := Decode(scores, boxes, 0, 0.5, 1, 1); err == nil || !strings.Contains(err.Error(), "for 0 classes") {
		t.Errorf("no classes were accepted: %v", err)
	}
}

func TestRenderNamesWhatIsShown(t *testing.T) {
	dir := t.TempDir()
	night := scene.Night()
	paths, err := Render(t.Context(), dir, 1, 2, &night)
	if err != nil || len(paths) != 6 {
		t.Fatal(paths, err)
	}
	for _, p := range paths {
		if info, err := os.Stat(p); err != nil || info.Size() == 0 {
			t.Error(p, err)
		}
	}
	if !strings.HasPrefix(filepath.Base(paths[2]), "vehicle-0-") {
		t.Errorf("%v", paths)
	}
}

func TestDrawRefusesAWrongSize(t *testing.T) {
	r, _ := Find("vehicle-m")
	if _, err := r.Draw(NewPainter(), 1, 1, nil, make([]byte, 7)); err == nil || !strings.Contains(err.Error(), "7 bytes: want 4608") {
		t.Error(err)
	}
}

// TestCropsFollowTheMix: classes are as frequent as the conditions say. Of an even mix image i is what it always was, so that committed
// accuracies hold.
func TestCropsFollowTheMix(t *testing.T) {
	day := scene.Day()
	rare := scene.Day()
	rare.Kinds[scene.Truck], rare.Activities[scene.Waving] = 10, 0
	for _, c := range []struct {
		model       string
		class       int
		light       *scene.Conditions
		least, most int // of 600
	}{
		{"vehicle-s", int(scene.Truck) - 1, &day, 70, 130}, {"vehicle-s", int(scene.Truck) - 1, &rare, 370, 430},
		{"activity-s", int(scene.Waving), &day, 70, 130}, {"activity-s", int(scene.Waving), &rare, 0, 0},
	} {
		r, _ := Find(c.model)
		h, w := r.Size()
		pixels := make([]byte, h*w*3)
		paint, found := NewPainter(), 0
		for i := range uint64(600) {
			truth, err := r.Draw(paint, 5, i, c.light, pixels)
			if err != nil {
				t.Fatal(err)
			}
			if truth.Class == c.class {
				found++
			}
			if first := scene.Seeded(heldOutSeed(5), i).IntN(6); c.light == &day && truth.Class != first {
				t.Fatalf("%s: image %d is of class %d, was %d", c.model, i, truth.Class, first)
			}
		}
		if found < c.least || found > c.most {
			t.Errorf("%s: %d of 600 of class %d, want %d to %d", c.model, found, c.class, c.least, c.most)
		}
	}
}
