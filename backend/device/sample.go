package device

import (
	"fmt"

	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
)

// WriteRow writes a payload, as a client sends it, to row i of the inputs in s.
func (d *Model) WriteRow(s *Slot, i int, payload []byte) error {
	if !d.Takes(len(payload)) {
		return fmt.Errorf("a row of %d bytes: %s takes %d", len(payload), d.Name, d.InBytes)
	}
	if d.Varies {
		to, err := SetPacked(s.InputRow(d, 0, i), len(payload))
		copy(to, payload)
		return err
	}

	for k := range d.Inputs {
		t := &d.Inputs[k]
		copy(s.InputRow(d, k, i), payload[t.Offset:][:t.Bytes])
	}
	return nil
}

// Fill fills every row of the inputs in s: with the samples in turn, or with zeros if there are none. Zeros are not a
// valid row of a model with BYTES inputs.
func (d *Model) Fill(s *Slot) error {
	// A slot may hold data of an earlier batch.
	if len(d.Samples) == 0 {
		for k := range d.Inputs {
			clear(s.Input(d, k, d.BatchMax))
		}
		return nil
	}

	for i := range d.BatchMax {
		sample := &d.Samples[i%len(d.Samples)]
		if err := d.WriteRow(s, i, sample.Row); err != nil {
			return fmt.Errorf("model_warmup %q: %w", sample.Name, err)
		}
	}
	return nil
}

// Guesses returns samples for a model with BYTES inputs without repository samples, the likeliest first: texts that
// must be numbers accept "0", others accept empty texts.
func (d *Model) Guesses() []repo.Sample {
	var all []repo.Sample
	for _, text := range []string{"0", ""} {
		s := repo.Sample{Name: fmt.Sprintf("%q", text), Batch: 1, Runs: 1}
		for k := range d.InParts {
			t := &d.InParts[k]

			// Zeros suit the tensors of a fixed size.
			if !t.Varies() {
				s.Row = append(s.Row, make([]byte, t.Bytes)...)
				continue
			}
			for range t.RowElements() {
				s.Row = model.AppendText(s.Row, text)
			}
		}
		all = append(all, s)
	}
	return all
}
