package learn

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/train"
)

// teacher is a model that labels inputs. It answers on a thread of its own, so that an answer which never comes keeps the
// step that asked for no longer than teachMost.
type teacher struct {
	name    string
	predict func(images []byte) (map[string][]float32, error)
	free    func() error
	asked   chan question
	answers chan answer // of the question asked last
	overdue bool        // that answer was not waited for
	limit   time.Duration
}

// question is what a step asks.
type question struct {
	images []byte
	n      int
	cores  unix.CPUSet // the step's: an answer runs where the scheduler ordered the step
}

// answer is what a teacher says of a question's inputs.
type answer struct {
	classes []int
	err     error
}

// teachMost is after what time an answer is no longer waited for: some hundred times as long as it takes.
const teachMost = 2 * time.Second

// openTeacher loads the newest version of a model of the repository: it labels, as the newest serves. A model that takes other
// images than the student is refused: it would fail on every one of them.
func openTeacher(repository, name, library string, student train.Net) (*teacher, error) {
	versions, err := (&Store{dir: filepath.Join(repository, name), net: train.Net{Name: name}}).list()
	if err == nil && len(versions) == 0 {
		err = errors.New("it has no version")
	}
	if err != nil {
		return nil, fmt.Errorf("teacher %s: %w", name, err)
	}

	m, err := onnx.Read(filepath.Join(repository, name, strconv.Itoa(versions[len(versions)-1]), "model.onnx"))
	if err != nil {
		return nil, fmt.Errorf("teacher %s: %w", name, err)
	}
	if err := checkTeacher(m, student); err != nil {
		return nil, fmt.Errorf("teacher %s: %w", name, err)
	}
	p, err := train.NewPredictor(library, m, labelBrief)
	if err != nil {
		return nil, fmt.Errorf("teacher %s: %w", name, err)
	}
	return newTeacher(name, p.Predict, p.Close, teachMost), nil
}

// checkTeacher says what keeps a model from looking at a student's images.
func checkTeacher(m *onnx.Model, student train.Net) error {
	if len(m.Graph.Inputs) != 1 {
		return fmt.Errorf("inputs: %d: want 1, the images of %s", len(m.Graph.Inputs), student.Name)
	}

	// The first dimension is the batch's: any size of it can be asked for.
	in := m.Graph.Inputs[0]
	var sizes []int64
	for _, d := range in.Dims[min(1, len(in.Dims)):] {
		sizes = append(sizes, d.Size)
	}
	if want := []int64{student.H, student.W, 3}; !slices.Equal(sizes, want) {
		return fmt.Errorf("input %s: %v: want %v, height, width and colours of the images of %s", in.Name, sizes, want, student.Name)
	}
	return nil
}

// newTeacher starts the thread that predicts.
func newTeacher(name string, predict func([]byte) (map[string][]float32, error), free func() error, limit time.Duration) *teacher {
	t := &teacher{name: name, predict: predict, free: free, asked: make(chan question, 1), answers: make(chan answer, 1), limit: limit}
	go t.answerQuestions()
	return t
}

// label has the teacher say what n inputs are. Only one goroutine at a time may call it.
func (t *teacher) label(images []byte, n int) ([]int, error) {
	if t.hangs() {
		return nil, errors.New("an answer is overdue still")
	}

	// Where the cores cannot be told the answer runs anywhere.
	q := question{images: images, n: n}
	_ = unix.SchedGetaffinity(0, &q.cores)
	// There is room for one question, and none is open: this waits for nobody.
	t.asked <- q
	t.overdue = true

	patience := time.NewTimer(t.limit)
	defer patience.Stop()
	select {
	case a := <-t.answers:
		t.overdue = false
		return a.classes, a.err
	case <-patience.C:
		return nil, fmt.Errorf("no answer within %v", t.limit)
	}
}

// hangs tells whether the answer that was not waited for is still to come. It takes one that has come: it is of no use any more.
func (t *teacher) hangs() bool {
	if t.overdue {
		select {
		case <-t.answers:
			t.overdue = false
		default:
		}
	}

	return t.overdue
}

// answerQuestions is the goroutine that predicts.
func (t *teacher) answerQuestions() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	var cores unix.CPUSet
	for q := range t.asked {
		// The mask is set when the step's core is another one: most steps run where the one before did.
		if q.cores != cores && q.cores.Count() > 0 && unix.SchedSetaffinity(0, &q.cores) == nil {
			cores = q.cores
		}

		// An answer that nobody waits for any more lies there until the next question finds it.
		classes, err := t.classify(q)
		t.answers <- answer{classes, err}
	}
}

// classify answers a question: classifiers have one score for each class.
func (t *teacher) classify(q question) (classes []int, err error) {
	out, err := t.predict(q.images)
	if err != nil {
		return nil, err
	}

	scores := out["scores"]
	if len(scores) == 0 || len(scores)%q.n != 0 {
		return nil, fmt.Errorf("%d scores for %d inputs", len(scores), q.n)
	}

	// All rows are as wide as the batch was made for.
	width := len(scores) / q.n
	for i := range q.n {
		classes = append(classes, bestClass(scores[i*width:(i+1)*width]))
	}
	return classes, nil
}

// close frees the teacher, unless it still has not answered after a while: then its memory is in use. A nil teacher has none.
func (t *teacher) close() error {
	if t == nil {
		return nil
	}

	// The model must not be freed while it runs: it gets the same patience once more.
	close(t.asked)
	for until := time.Now().Add(t.limit); t.hangs() && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	if t.overdue {
		return fmt.Errorf("teacher %s: an answer does not end, its memory is not freed", t.name)
	}
	return t.free()
}
