//go:build linux

package frontendtest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"downbeat.dev/backend"
	"downbeat.dev/backend/device"
	"downbeat.dev/backend/emu"
	"downbeat.dev/core/repo"
	"downbeat.dev/frontend"
)

// Model is a model that a Server serves.
type Model struct {
	Name    string
	Inputs  []frontend.TensorInfo // of fixed sizes, without a batch dimension
	Outputs []frontend.TensorInfo
	// Answer sets the outputs of one request; those that it leaves are zeros. An error fails the request with
	// frontend.ErrFailed. Nil: all outputs are zeros.
	Answer   func(Row) error
	SLO      time.Duration // deadline of a request that names none; a minute when 0
	Takes    time.Duration // of a batch of any size; 100 µs when 0. The scheduler plans with it
	BatchMax int           // requests that run together at most; 8 when 0
	Sequence string        // what stands in sequence_batching of its configuration; empty: it keeps no sequences
}

// Row is one request of a batch. It is valid until Answer returns.
type Row struct {
	model *device.Model
	slot  *device.Slot
	index int
}

// Input returns an input of the request by its name.
func (r Row) Input(name string) frontend.Tensor {
	for k := range r.model.Inputs {
		if t := &r.model.Inputs[k]; t.Name == name {
			return frontend.TensorOf(&t.Tensor, r.slot.InputRow(r.model, k, r.index))
		}
	}
	return frontend.TensorOf(nil, nil)
}

// Output returns an output of the request by its name, to be set.
func (r Row) Output(name string) frontend.Tensor {
	for k := range r.model.Outputs {
		if t := &r.model.Outputs[k]; t.Name == name {
			return frontend.TensorOf(&t.Tensor, r.slot.OutputRow(r.model, k, r.index))
		}
	}
	return frontend.TensorOf(nil, nil)
}

// layOut describes the models as a repository does, so that they are checked as a deployment's are.
func layOut(models []Model) ([]*device.Model, error) {
	dir, err := os.MkdirTemp("", "frontendtest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)

	for _, m := range models {
		text, err := m.configText()
		if err != nil {
			return nil, err
		}
		err = errors.Join(os.Mkdir(filepath.Join(dir, m.Name), 0o755), os.WriteFile(filepath.Join(dir, m.Name, "config.pbtxt"), []byte(text), 0o644))
		if err != nil {
			return nil, fmt.Errorf("model %q: %w", m.Name, err)
		}
	}

	// A mistake in a test's model must not leave the model out, as it would in a deployment.
	r, err := repo.Open(dir)
	if err != nil {
		return nil, err
	}
	if len(r.Errors) > 0 {
		return nil, fmt.Errorf("models: %v", r.Errors)
	}

	var all []*device.Model
	for i := range r.Models {
		d, err := device.NewModel(&r.Models[i], 0, backend.SlotBytesMax)
		if err != nil {
			return nil, err
		}

		// The configuration says what batches take: nothing is measured, so that every host plans alike.
		if d.Profile, err = emu.Profile(&r.Models[i]); err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// configText returns the model's config.pbtxt.
func (m Model) configText() (string, error) {
	if m.Name == "" || strings.ContainsAny(m.Name, `/\`) {
		return "", fmt.Errorf("model %q: want a name that a folder can have", m.Name)
	}

	// A long SLO keeps a slow test machine from dropping requests.
	slo, takes, batch := cmp.Or(m.SLO, time.Minute), cmp.Or(m.Takes, 100*time.Microsecond), cmp.Or(m.BatchMax, 8)

	text := fmt.Sprintf("name: %q platform: \"emulated\" max_batch_size: %d\n", m.Name, batch)
	for kind, tensors := range map[string][]frontend.TensorInfo{"input": m.Inputs, "output": m.Outputs} {
		for i := range tensors {
			t := &tensors[i]
			if t.Varies() {
				return "", fmt.Errorf("model %q: %s %q: BYTES is not supported here", m.Name, kind, t.Name)
			}
			if err := t.Check(); err != nil {
				return "", fmt.Errorf("model %q: %s %w", m.Name, kind, err)
			}

			shape := strings.Join(strings.Fields(strings.Trim(fmt.Sprint(t.Shape), "[]")), ", ")
			text += fmt.Sprintf("%s [ { name: %q data_type: TYPE_%s dims: [ %s ] } ]\n", kind, t.Name, t.Datatype, shape)
		}
	}

	if m.Sequence != "" {
		text += fmt.Sprintf("sequence_batching { %s }\n", m.Sequence)
	}

	// The repository reads times in milliseconds, and ℓ(b) wants an alpha above 0.
	parameter := func(key string, d time.Duration) string {
		return fmt.Sprintf("parameters { key: %q value { string_value: \"%f\" } }\n", key, float64(d)/float64(time.Millisecond))
	}
	return text + parameter("alpha_ms", time.Microsecond) + parameter("beta_ms", takes) + parameter("slo_ms", slo), nil
}
