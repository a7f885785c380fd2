package backend

import (
	"errors"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
)

// isolateRows runs a failed batch again in halves, so that a row that the model cannot process (such as an index out
// of range, in ONNX Runtime) fails alone. It marks such rows in o.bad and returns nil if any row has its output, else
// the reason of the batch's failure. Rows whose deadlines leave no time for a second run fail too.
//
// A part runs in the first rows of the slot. Parts go from left to right and the left half is never smaller, so the
// rows that a part overwrites have been settled. Outputs are kept aside until all parts have run.
func (g *gpu) isolateRows(o *order, why error) error {
	if o.rows < 2 || errors.Is(why, device.ErrLost) {
		return why
	}

	o.recallRows() // the rows are about to move
	o.bad = make([]bool, o.rows)
	kept := make([][]byte, o.rows*len(o.model.Outputs))
	half := (o.rows + 1) / 2

	done, err := g.runPart(o, kept, 0, half)
	if err == nil {
		var more int
		more, err = g.runPart(o, kept, half, o.rows)
		done += more
	}

	if err != nil { // lost meanwhile
		return err
	}
	if done == 0 {
		return why
	}

	// Each part ran in the first rows: its outputs return to their rows.
	for row := range o.rows {
		for k := range o.model.Outputs {
			copy(o.run.OutputRow(o.model, k, row), kept[row*len(o.model.Outputs)+k])
		}
	}
	return nil
}

// runPart runs rows from…to−1 and, if they fail, their halves. It returns how many have outputs, and an error only if
// the GPU is lost.
func (g *gpu) runPart(o *order, kept [][]byte, from, to int) (done int, err error) {
	n, outputs := to-from, len(o.model.Outputs)

	if g.backend.now()+usualTime(o.model, n) > o.useful {
		o.markBad(from, to)
		return 0, nil
	}

	// An executor runs a slot's first rows, so a part is moved there.
	for i := 0; i < n && from > 0; i++ {
		o.run.CopyRow(o.model, i, o.run, from+i)
	}
	err = device.Execute(o.route.executor, device.Batch{Model: o.model, Slot: o.run, Rows: n})
	switch {
	case errors.Is(err, device.ErrLost):
		return 0, err
	case err == nil:
		for i := range n {
			for k := range outputs {
				// The next part writes its outputs to the same rows.
				kept[(from+i)*outputs+k] = append([]byte(nil), o.run.OutputRow(o.model, k, i)...)
			}
		}
		return n, nil
	case n == 1:
		o.markBad(from, to)
		return 0, nil
	}

	// The original rows are unchanged: their halves move from there.
	half := from + (n+1)/2
	left, err := g.runPart(o, kept, from, half)
	if err != nil {
		return left, err
	}
	right, err := g.runPart(o, kept, half, to)
	return left + right, err
}

func (o *order) markBad(from, to int) {
	for row := from; row < to; row++ {
		o.bad[row] = true
	}
}

// failBad ends the requests whose rows failed alone, and logs their frontends.
func (o *order) failBad() {
	for i := range o.items {
		it := &o.items[i]
		if it.reason == model.ReasonNone && o.bad[it.row] {
			it.reason = model.ExecutionFailed
			if it.reply != nil {
				it.reply.noteBadRow(o.model)
			}
		}
	}
}

// noteBadRow counts a request of the frontend that the model cannot process, and logs some of them.
func (f *peer) noteBadRow(m *device.Model) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.badRows++
	if time.Since(f.badSaid) > sayEvery {
		f.all.log.Warn("single requests fail in batches that succeed: their inputs are not what the model takes",
			"frontend", f.addr, "model", m.Name, "version", m.Version, "requests", f.badRows)
		f.badSaid, f.badRows = time.Now(), 0
	}
}
