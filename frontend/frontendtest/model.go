//go:build linux

package frontendtest

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"downbeat.dev/backend"
	"downbeat.dev/backend/device"
	"downbeat.dev/backend/emu"
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

// layOut returns the models as a deployment would read them.
func layOut(models []Model) ([]*device.Model, error) {
	texts := map[string]string{}
	for _, m := range models {
		if texts[m.Name] != "" {
			return nil, fmt.Errorf("model %q: given twice", m.Name)
		}

		var err error
		if texts[m.Name], err = m.configText(); err != nil {
			return nil, err
		}
	}
	return emu.ReadModels(texts, backend.SlotBytesMax)
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
