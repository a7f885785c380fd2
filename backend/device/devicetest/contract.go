// Package devicetest holds the contract test that every executor passes, and models and slots for
// tests of those who use executors. It is imported by tests only.
package devicetest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/repo"
)

// Case is what an executor under test brings.
type Case struct {
	Open   func(t *testing.T) device.Executor                       // a fresh one; the contract closes it
	Models []*device.Model                                          // loadable by it, all together; two at least
	Want   func(m *device.Model, input []byte) []byte               // output payload of one row's input payload
	Input  func(m *device.Model, r *rand.Rand, payload []byte) bool // fills a valid input payload; nil or false: random bytes
	// Weights are other ones for Models[0], and Updated the output that it then has.
	Weights *repo.Model
	Updated func(input []byte) []byte
	Other   *repo.Model   // of other shapes, which cannot replace Models[0]'s weights
	Corrupt *device.Model // cannot be loaded
	Foreign *device.Model // is for another executor; nil: there is no such model
}

const slotCount = 3

// Contract runs the executor contract.
func Contract(t *testing.T, c Case) {
	t.Run("EveryBatchSizeOnEverySlot", c.everyBatchSize)
	t.Run("RowsBeyondTheBatchAreUntouched", c.checkUntouched)
	t.Run("ExecuteAllocatesNothing", c.checkAllocations)
	t.Run("SlotsTooSmallAreRefused", c.tooSmall)
	t.Run("TwoUnderWay", c.checkAhead)
	t.Run("LoadAndUnloadUnderLoad", c.loadUnderLoad)
	t.Run("UpdateUnderLoad", c.updateUnderLoad)
	t.Run("LoadThatFailsLeavesOthersAlone", c.loadFails)
	t.Run("WhatIsUnloadedIsGone", c.checkUnload)
	t.Run("SlotsChange", c.slotsChange)
}

func (c Case) loadAll(t *testing.T) (device.Executor, []*device.Slot) {
	t.Helper()
	slots := Slots(t, slotCount, device.SlotBytes(c.Models))
	e := c.Open(t)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	for _, m := range c.Models {
		if err := Load(e, m, slots); err != nil {
			t.Fatalf("load: %v", err)
		}
	}
	return e, slots
}

// fillRow puts a fresh payload into row i and returns it.
func (c Case) fillRow(m *device.Model, s *device.Slot, i int, r *rand.Rand) []byte {
	payload := make([]byte, m.InBytes)
	if c.Input == nil || !c.Input(m, r, payload) {
		for j := range payload {
			payload[j] = byte(r.Uint32())
		}
	}
	SetInput(m, s, i, payload)
	return payload
}

func (c Case) everyBatchSize(t *testing.T) {
	e, slots := c.loadAll(t)
	r := rand.New(rand.NewPCG(1, 2))
	for n := 1; ; n++ {
		ran := false
		for _, m := range c.Models { // models alternate on the same slots
			if n > m.BatchMax {
				continue
			}
			ran = true

			// Fresh payloads each time: what an earlier batch left in the slot must not pass for an answer.
			s := slots[n%len(slots)]
			var inputs [][]byte
			for i := range n {
				inputs = append(inputs, c.fillRow(m, s, i, r))
			}

			if err := device.Execute(e, device.Batch{Model: m, Slot: s, Rows: n}); err != nil {
				t.Fatalf("execute %s, %d rows: %v", m.Name, n, err)
			}
			for i := range n {
				if got, want := Output(m, s, i), c.Want(m, inputs[i]); !bytes.Equal(got, want) {
					t.Fatalf("%s, %d rows, slot %d: row %d is % x, want % x", m.Name, n, s.Index, i, headOf(got), headOf(want))
				}
			}
		}

		// Beyond the largest batch of every model nothing is left to run.
		if !ran {
			return
		}
	}
}

func (c Case) checkUntouched(t *testing.T) {
	e, slots := c.loadAll(t)
	r := rand.New(rand.NewPCG(3, 4))
	for _, m := range c.Models {
		if m.BatchMax < 2 {
			continue
		}

		// Half a batch leaves rows whose outputs belong to somebody else.
		n, s := m.BatchMax/2, slots[0]
		for i := range n {
			c.fillRow(m, s, i, r)
		}

		// A pattern that no model answers shows any byte that was written.
		for k := range m.Outputs {
			b := s.Output(m, k, m.BatchMax)
			for j := range b {
				b[j] = 0xa5
			}
		}

		if err := device.Execute(e, device.Batch{Model: m, Slot: s, Rows: n}); err != nil {
			t.Fatalf("execute %s: %v", m.Name, err)
		}
		for i := n; i < m.BatchMax; i++ {
			if got := Output(m, s, i); !bytes.Equal(got, bytes.Repeat([]byte{0xa5}, len(got))) {
				t.Errorf("%s: a batch of %d changed row %d", m.Name, n, i)
			}
		}
	}
}

func (c Case) checkAllocations(t *testing.T) {
	e, slots := c.loadAll(t)
	for _, m := range c.Models {
		for i := range m.BatchMax {
			c.fillRow(m, slots[0], i, rand.New(rand.NewPCG(5, 6)))
		}
		b := device.Batch{Model: m, Slot: slots[0], Rows: m.BatchMax}

		if a := testing.AllocsPerRun(20, func() {
			if err := device.Execute(e, b); err != nil {
				t.Fatal(err)
			}
		}); a != 0 {
			t.Errorf("%s: %v allocations per batch, want 0", m.Name, a)
		}
	}
}

// checkAhead submits each batch behind one of another model or size, where the executor takes them so.
func (c Case) checkAhead(t *testing.T) {
	e, slots := c.loadAll(t)
	if !e.Capabilities().Ahead {
		t.Skip("takes one batch at a time")
	}

	r := rand.New(rand.NewPCG(7, 8))
	var last device.Batch // under way, if it has a model
	var inputs [][]byte

	// Batches end in the order in which they were submitted: land waits for the one before.
	land := func() {
		if err := e.Wait(last); err != nil {
			t.Fatalf("%s, %d rows: %v", last.Model.Name, last.Rows, err)
		}
		for i := range last.Rows {
			if got, want := Output(last.Model, last.Slot, i), c.Want(last.Model, inputs[i]); !bytes.Equal(got, want) {
				t.Fatalf("%s, %d rows, slot %d: row %d is % x, want % x", last.Model.Name, last.Rows, last.Slot.Index, i, headOf(got), headOf(want))
			}
		}
	}

	// Models and sizes come in a fixed random order, so that a failure repeats.
	for k := range 40 {
		m := c.Models[r.IntN(len(c.Models))]
		b := device.Batch{Model: m, Slot: slots[k%len(slots)], Rows: 1 + r.IntN(m.BatchMax)}
		var in [][]byte
		for i := range b.Rows {
			in = append(in, c.fillRow(m, b.Slot, i, r))
		}

		err := e.Submit(b)
		if last.Model != nil {
			land()
		}

		// An executor may have no room beside the batch before, but must take it when that has ended.
		if errors.Is(err, device.ErrBusy) && last.Model != nil {
			err = e.Submit(b)
		}
		if err != nil {
			t.Fatalf("submit %s, %d rows: %v", m.Name, b.Rows, err)
		}

		last, inputs = b, in
	}
	land()
}

func (c Case) tooSmall(t *testing.T) {
	e := c.Open(t)
	defer e.Close()
	if err := Load(e, c.Models[0], Slots(t, 1, device.Align)); err == nil || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("load on slots of %d bytes: %v, want an error that says how many bytes are needed", device.Align, err)
	}
}

func headOf(b []byte) []byte { return b[:min(16, len(b))] }
