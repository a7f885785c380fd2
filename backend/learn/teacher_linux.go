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

// teacher is a model that labels inputs. It answers on a thread of its own, so that an answer that never comes delays
// a step by at most teachMost.
type teacher struct {
	name    string
	predict func(images []byte) (map[string][]float32, error)
	free    func() error
	asked   chan question
	answers chan answer // the answer to the latest question
	overdue bool        // the step did not wait for that answer
	limit   time.Duration
}

// question is one call of the teacher.
type question struct {
	images []byte
	n      int
	cores  unix.CPUSet // the step's: the answer runs on the processors to which the scheduler sent the step
}

// answer is the teacher's answer to a question.
type answer struct {
	classes []int
	err     error
}

// teachMost is the longest wait for an answer, some hundred times its usual duration.
const teachMost = 2 * time.Second

// openTeacher loads the newest version of a model of the repository. It refuses a model whose input differs from the
// student's, since such a model would fail on every image.
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

// checkTeacher returns an error if a model cannot take a student's images.
func checkTeacher(m *onnx.Model, student train.Net) error {
	if len(m.Graph.Inputs) != 1 {
		return fmt.Errorf("inputs: %d: want 1, the images of %s", len(m.Graph.Inputs), student.Name)
	}

	// The first dimension is the batch's and may have any size.
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

// label returns the teacher's classes of n inputs. Only one goroutine at a time may call it.
func (t *teacher) label(images []byte, n int) ([]int, error) {
	if t.hangs() {
		return nil, errors.New("an answer is overdue still")
	}

	// If the affinity is unknown, the answer runs on any processor.
	q := question{images: images, n: n}
	_ = unix.SchedGetaffinity(0, &q.cores)
	// The channel has space for one question and none is pending, so this does not block.
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

// hangs reports whether an overdue answer is still missing. It discards one that has arrived.
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
		// Set the mask only if it differs: most steps run where the previous one ran.
		if q.cores != cores && q.cores.Count() > 0 && unix.SchedSetaffinity(0, &q.cores) == nil {
			cores = q.cores
		}

		// An overdue answer stays in the channel until the next question discards it.
		classes, err := t.classify(q)
		t.answers <- answer{classes, err}
	}
}

// classify answers a question: a classifier has one score per class.
func (t *teacher) classify(q question) (classes []int, err error) {
	out, err := t.predict(q.images)
	if err != nil {
		return nil, err
	}

	scores := out["scores"]
	if len(scores) == 0 || len(scores)%q.n != 0 {
		return nil, fmt.Errorf("%d scores for %d inputs", len(scores), q.n)
	}

	// Every row has the same width.
	width := len(scores) / q.n
	for i := range q.n {
		classes = append(classes, bestClass(scores[i*width:(i+1)*width]))
	}
	return classes, nil
}

// close frees the teacher unless it does not answer in time: then its memory is still in use. A nil teacher needs no
// close.
func (t *teacher) close() error {
	if t == nil {
		return nil
	}

	// The model must not be freed while it runs, so wait once more.
	close(t.asked)
	for until := time.Now().Add(t.limit); t.hangs() && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	if t.overdue {
		return fmt.Errorf("teacher %s: an answer does not end, its memory is not freed", t.name)
	}
	return t.free()
}
