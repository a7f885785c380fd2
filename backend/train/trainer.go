//go:build cgo

package train

import (
	"errors"
	"fmt"
	"time"

	ortgo "github.com/yalue/onnxruntime_go"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/ort"
)

// Trainer holds a network's weights and runs steps with ONNX Runtime, each without a stop. Call Close when done.
type Trainer struct {
	net     Net
	options Options
	run     *runner
	image   *ortgo.Tensor[uint8]
	target  *ortgo.Tensor[float32]
	rate    *ortgo.Tensor[float32]
	loss    *ortgo.Tensor[float32]
	state   [2][3]*ortgo.Tensor[float32] // weights and moments: current and next, swapped every step
	begun   bool
	step    int
}

// New builds the training graph and draws initial weights.
func New(net Net, o Options) (*Trainer, error) {
	m, weights, err := net.Training(o)
	if err != nil {
		return nil, err
	}
	run, err := newRunner(o.Library, m)
	if err != nil {
		return nil, fmt.Errorf("training graph of %s: %w", net.Name, err)
	}
	t := &Trainer{net: net, options: o, run: run}
	if err := t.allocateState(weights); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

func (t *Trainer) allocateState(weights []float32) (err error) {
	b := int64(t.options.Batch)
	if t.image, err = newTensor[uint8](t.run, b, t.net.H, t.net.W, 3); err != nil {
		return err
	}

	_, y := t.net.sketchForward()
	if t.target, err = newTensor[float32](t.run, append([]int64{b}, t.net.Head.target(y)...)...); err != nil {
		return err
	}
	if t.rate, err = newTensor[float32](t.run, 1); err != nil {
		return err
	}
	if t.loss, err = newTensor[float32](t.run, 1); err != nil {
		return err
	}

	// Two sets of weights and moments: a step reads one and writes the other.
	for i := range t.state {
		for j := range t.state[i] {
			if t.state[i][j], err = newTensor[float32](t.run, int64(len(weights))); err != nil {
				return err
			}
		}
	}
	copy(t.state[0][0].GetData(), weights)
	return nil
}

// Step runs one batch and returns the mean loss before the step.
func (t *Trainer) Step(images []byte, targets []float32, lr float64) (float32, error) {
	if err := t.Begin(images, targets, lr); err != nil {
		return 0, err
	}
	_, loss, err := t.Advance(0)
	return loss, err
}

// Begin implements Stepper.
func (t *Trainer) Begin(images []byte, targets []float32, lr float64) error {
	if len(images) != len(t.image.GetData()) || len(targets) != len(t.target.GetData()) {
		return fmt.Errorf("step: %d image bytes and %d target floats: want %d and %d",
			len(images), len(targets), len(t.image.GetData()), len(t.target.GetData()))
	}

	// The tensors stay bound to the session: a step copies in and allocates nothing.
	copy(t.image.GetData(), images)
	copy(t.target.GetData(), targets)
	t.rate.GetData()[0] = float32(t.options.Optimiser.CorrectedRate(lr, t.step+1))
	t.begun = true
	return nil
}

// Advance implements Stepper: it runs the whole step.
func (t *Trainer) Advance(time.Duration) (done bool, loss float32, err error) {
	if !t.begun {
		return false, 0, errNotBegun
	}
	t.begun = false

	now, next := &t.state[0], &t.state[1]
	in := map[string]ortgo.Value{"image": t.image, "target": t.target, "rate": t.rate}
	out := map[string]ortgo.Value{"loss": t.loss}
	for i, name := range vectors {
		in[name], out[name+".new"] = now[i], next[i]
	}

	if err := t.run.run(in, out); err != nil {
		return false, 0, fmt.Errorf("step %d of %s: %w", t.step+1, t.net.Name, err)
	}
	t.step++

	// Swap the sets only after a successful step: a failed one leaves the weights unchanged.
	t.state[0], t.state[1] = t.state[1], t.state[0]
	loss = t.loss.GetData()[0]
	return true, loss, t.net.CheckLoss(t.step, loss)
}

// Weights returns the flat weight vector, valid until the next Step; do not change it.
func (t *Trainer) Weights() []float32 { return t.state[0][0].GetData() }

// SetWeights starts again from other weights, with a new optimiser state.
func (t *Trainer) SetWeights(weights []float32) error {
	now := t.state[0][0].GetData()
	if len(weights) != len(now) {
		return fmt.Errorf("weights: %d numbers: the net %s takes %d", len(weights), t.net.Name, len(now))
	}

	// The moments belong to the old weights; new weights start without a history.
	t.begun = false
	copy(now, weights)
	for _, moment := range t.state[0][1:] {
		clear(moment.GetData())
	}
	t.step = 0
	return nil
}

// Close frees everything.
func (t *Trainer) Close() error { return t.run.close() }

// Predictor runs a serving graph on batches of images. One goroutine.
type Predictor struct {
	run   *runner
	image *ortgo.Tensor[uint8]
	out   map[string]ortgo.Value
	data  map[string][]float32
}

// NewPredictor loads a model with one UINT8 input "image" and FP32 outputs for a fixed batch size.
func NewPredictor(library string, m *onnx.Model, batch int) (*Predictor, error) {
	run, err := newRunner(library, m)
	if err != nil {
		return nil, err
	}

	p := &Predictor{run: run, out: map[string]ortgo.Value{}, data: map[string][]float32{}}
	if p.image, err = newTensor[uint8](run, sizesOf(m.Graph.Inputs[0].Dims, batch)...); err != nil {
		run.close()
		return nil, err
	}

	for _, o := range m.Graph.Outputs {
		t, err := newTensor[float32](run, sizesOf(o.Dims, batch)...)
		if err != nil {
			run.close()
			return nil, err
		}
		p.out[o.Name], p.data[o.Name] = t, t.GetData()
	}
	return p, nil
}

func sizesOf(dims []onnx.Dim, batch int) []int64 {
	out := []int64{int64(batch)}
	for _, d := range dims[1:] {
		out = append(out, d.Size)
	}
	return out
}

// Predict returns the outputs by name; they are overwritten by the next call.
func (p *Predictor) Predict(images []byte) (map[string][]float32, error) {
	if len(images) != len(p.image.GetData()) {
		return nil, fmt.Errorf("predict: %d image bytes: want %d", len(images), len(p.image.GetData()))
	}
	copy(p.image.GetData(), images)
	return p.data, p.run.run(map[string]ortgo.Value{"image": p.image}, p.out)
}

// Close frees everything.
func (p *Predictor) Close() error { return p.run.close() }

// runner is one session and the tensors made for it.
type runner struct {
	session *ortgo.DynamicAdvancedSession
	inputs  []string
	outputs []string
	tensors []ortgo.Value
}

func newRunner(library string, m *onnx.Model) (*runner, error) {
	if _, err := ort.Open(library); err != nil {
		return nil, err
	}

	r := &runner{}
	for _, v := range m.Graph.FeedInputs() {
		r.inputs = append(r.inputs, v.Name)
	}
	for _, v := range m.Graph.Outputs {
		r.outputs = append(r.outputs, v.Name)
	}

	o, err := ortgo.NewSessionOptions()
	if err != nil {
		return nil, err
	}
	defer o.Destroy()

	// One thread, so that two runs with one seed add in the same order.
	if err := errors.Join(o.SetIntraOpNumThreads(1), o.SetInterOpNumThreads(1), o.SetLogSeverityLevel(ortgo.LoggingLevelError)); err != nil {
		return nil, err
	}

	r.session, err = ortgo.NewDynamicAdvancedSessionWithONNXData(m.Marshal(), r.inputs, r.outputs, o)
	return r, err
}

// newTensor returns a zeroed tensor that lives until the runner is closed.
func newTensor[T ortgo.TensorData](r *runner, dims ...int64) (*ortgo.Tensor[T], error) {
	n := int64(1)
	for _, d := range dims {
		n *= d
	}

	// Go memory, which the runtime reads and writes in place.
	t, err := ortgo.NewTensor(ortgo.NewShape(dims...), make([]T, n))
	if err != nil {
		return nil, fmt.Errorf("tensor %v: %w", dims, err)
	}
	r.tensors = append(r.tensors, t)
	return t, nil
}

func (r *runner) run(in, out map[string]ortgo.Value) error {
	i, o := make([]ortgo.Value, len(r.inputs)), make([]ortgo.Value, len(r.outputs))
	for k, name := range r.inputs {
		i[k] = in[name]
	}
	for k, name := range r.outputs {
		o[k] = out[name]
	}
	return r.session.Run(i, o)
}

func (r *runner) close() error {
	// Free tensors before their session.
	var errs []error
	for _, t := range r.tensors {
		errs = append(errs, t.Destroy())
	}
	r.tensors = nil
	if r.session != nil {
		errs = append(errs, r.session.Destroy())
		r.session = nil
	}
	return errors.Join(errs...)
}
