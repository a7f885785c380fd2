package device

import (
	"errors"
	"fmt"
	"time"

	"downbeat.dev/core/repo"
)

// warmUpMax bounds the warm-up of a slow model: the largest and the smallest batch, and as many sizes between them as
// time allows.
const warmUpMax = 3 * time.Second

// WarmUp runs the loaded model m on its samples in s, or on zeros if it has none, so that everything is prepared for
// the first real batch. run executes one batch. passes is Capabilities.Passes; with ends only the largest and the
// smallest batch run. For a model with BYTES inputs and no samples the first guess that runs becomes its sample.
func WarmUp(m *Model, s *Slot, passes int, ends bool, run func(Batch) error) error {
	w := warmUp{model: m, slot: s, passes: passes, ends: ends, run: run, began: time.Now()}
	if passes == 0 {
		return nil
	}
	if len(m.Samples) > 0 || !m.Varies {
		return w.runAll()
	}

	// Texts that the model understands are unknown, so try some.

	var failed error
	for _, guess := range m.Guesses() {
		m.Samples = []repo.Sample{guess}
		err := w.runAll()
		if err == nil {
			return nil
		}
		failed = errors.Join(failed, fmt.Errorf("elements %s: %w", guess.Name, err))
	}
	m.Samples = nil
	return fmt.Errorf("%w; model_warmup in config.pbtxt can give inputs that the model takes", failed)
}

// warmUp is one call of WarmUp.
type warmUp struct {
	model  *Model
	slot   *Slot
	passes int
	ends   bool
	run    func(Batch) error
	began  time.Time
}

// runAll runs the batch sizes, the largest first because it needs the most memory, then the samples at their sizes.
func (w *warmUp) runAll() error {
	m := w.model

	if err := m.Fill(w.slot); err != nil {
		return err
	}
	for n := m.BatchMax; n >= 1; n-- {
		end := n == 1 || n == m.BatchMax

		// It is better to serve a slow model early with some unprepared sizes than late with all prepared.
		if !end && (w.ends || m.Varies || time.Since(w.began) > warmUpMax) {
			continue
		}
		if err := w.runSize(n, w.passes); err != nil {
			return fmt.Errorf("warm up with a batch of %d: %w", n, err)
		}
	}

	for _, sample := range m.Samples {
		n := min(sample.Batch, m.BatchMax)
		for i := range n {
			if err := m.WriteRow(w.slot, i, sample.Row); err != nil {
				return fmt.Errorf("model_warmup %q: %w", sample.Name, err)
			}
		}
		if err := w.runSize(n, sample.Runs); err != nil {
			return fmt.Errorf("model_warmup %q: %w", sample.Name, err)
		}
	}
	return nil
}

func (w *warmUp) runSize(rows, times int) error {
	for range times {
		if err := w.run(Batch{Model: w.model, Slot: w.slot, Rows: rows}); err != nil {
			return err
		}
	}
	return nil
}
