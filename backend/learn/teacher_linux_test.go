package learn

import (
	"errors"
	"strings"
	"testing"
	"time"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/models"
)

// TestATeacherThatHangs shows that a caller waits no longer than the limit, and not at all until the late answer has
// come. A teacher that still hangs at the end is not freed during its call.
func TestATeacherThatHangs(t *testing.T) {
	release, freed := make(chan map[string][]float32), 0
	predict := func([]byte) (map[string][]float32, error) { return <-release, nil }
	x := newTeacher("vehicle-m", predict, func() error { freed++; return nil }, 20*time.Millisecond)

	if _, err := x.label(nil, 2); err == nil || !strings.Contains(err.Error(), "no answer within 20ms") {
		t.Fatalf("a teacher that hangs: %v", err)
	}
	if _, err := x.label(nil, 2); err == nil || !strings.Contains(err.Error(), "overdue") {
		t.Fatalf("asked again: %v, want that the first answer is overdue", err)
	}

	// Answers that come in time belong to their own question, not to the late one.
	x.limit = time.Minute
	release <- map[string][]float32{"scores": {1, 0, 1, 0}}
	for x.hangs() {
		time.Sleep(time.Millisecond)
	}
	go func() { release <- map[string][]float32{"scores": {0, 1, 1, 0}} }()
	if classes, err := x.label(nil, 2); err != nil || len(classes) != 2 || classes[0] != 1 || classes[1] != 0 {
		t.Fatalf("classes %v, %v; want 1 and 0", classes, err)
	}

	x.limit = time.Millisecond
	_, _ = x.label(nil, 2)
	if err := x.close(); err == nil || freed != 0 {
		t.Errorf("closed while it hangs: %v, freed %d times; want an error and that its memory stays", err, freed)
	}
	close(release)
}

// TestATeacherSaysWhatItFailedOn shows that its errors are those of the model, and that answers that are not scores
// are an error.
func TestATeacherSaysWhatItFailedOn(t *testing.T) {
	broken := errors.New("out of memory")
	out := map[string][]float32{"boxes": {1}}
	x := newTeacher("vehicle-m", func([]byte) (map[string][]float32, error) { return out, broken }, func() error { return nil }, time.Minute)
	if _, err := x.label(nil, 4); !errors.Is(err, broken) {
		t.Errorf("%v, want %v", err, broken)
	}

	broken = nil
	if _, err := x.label(nil, 4); err == nil || !strings.Contains(err.Error(), "0 scores for 4 inputs") {
		t.Errorf("a model without scores: %v", err)
	}
	if err := x.close(); err != nil {
		t.Error(err)
	}
}

// TestATeacherOfAnotherSizeIsRefused shows that the refusal comes before any call of ONNX Runtime, and that one of
// the same size opens.
func TestATeacherOfAnotherSizeIsRefused(t *testing.T) {
	student, _ := models.Find("vehicle-s")
	for name, want := range map[string]string{
		"detector-s": "teacher detector-s: input image: [96 96 3]: want [32 48 3]",
		"activity-l": "teacher activity-l: input image: [48 32 3]: want [32 48 3]",
	} {
		if _, err := openTeacher("../../models", name, "", student.Net()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want …%s…", name, err, want)
		}
	}

	m, err := onnx.Read("../../models/vehicle-l/1/model.onnx")
	if err != nil {
		t.Fatal(err)
	}
	if err := checkTeacher(m, student.Net()); err != nil {
		t.Errorf("vehicle-l: %v", err)
	}
	m.Graph.Inputs = append(m.Graph.Inputs, m.Graph.Inputs[0])
	if err := checkTeacher(m, student.Net()); err == nil || !strings.Contains(err.Error(), "inputs: 2: want 1") {
		t.Errorf("two inputs: %v", err)
	}
}
