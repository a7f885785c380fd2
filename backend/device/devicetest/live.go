package devicetest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"downbeat.dev/backend/device"
)

// The part of the contract that changes what is loaded while batches run.

// stream runs one batch of a model after another on one slot until it is stopped.
type stream struct {
	t       *testing.T
	c       Case
	e       device.Executor
	m       *device.Model
	slot    *device.Slot
	want    func(input, got []byte) bool
	stop    atomic.Bool
	batches atomic.Int64
	ended   sync.WaitGroup
}

// serveStream starts a stream of the first model. Every output must be as want says; nil: the model's own.
func (c Case) serveStream(t *testing.T, e device.Executor, slot *device.Slot, want func(input, got []byte) bool) *stream {
	s := &stream{t: t, c: c, e: e, m: c.Models[0], slot: slot, want: want}
	if want == nil {
		s.want = func(input, got []byte) bool { return bytes.Equal(got, c.Want(s.m, input)) }
	}
	s.ended.Add(1)
	go s.runStream()
	s.awaitBatches(1)
	return s
}

func (s *stream) runStream() {
	defer s.ended.Done()

	r := rand.New(rand.NewPCG(11, 12))
	for !s.stop.Load() {
		rows := 1 + r.IntN(s.m.BatchMax)
		var inputs [][]byte
		for i := range rows {
			inputs = append(inputs, s.c.fillRow(s.m, s.slot, i, r))
		}

		// The change beside it must neither fail a batch nor alter a row.
		if err := device.Execute(s.e, device.Batch{Model: s.m, Slot: s.slot, Rows: rows}); err != nil {
			s.t.Errorf("a batch beside the change: %v", err)
			return
		}
		for i := range rows {
			if got := Output(s.m, s.slot, i); !s.want(inputs[i], got) {
				s.t.Errorf("row %d of %d is % x", i, rows, headOf(got))
				return
			}
		}

		s.batches.Add(1)
	}
}

// awaitBatches returns when n more batches have ended, or the stream has failed.
func (s *stream) awaitBatches(n int64) {
	for end := s.batches.Load() + n; s.batches.Load() < end && !s.t.Failed(); {
		yieldStream()
	}
}

func (s *stream) endStream() {
	s.stop.Store(true)
	s.ended.Wait()
}

// loadUnderLoad loads and unloads the second model again and again while the first is served.
func (c Case) loadUnderLoad(t *testing.T) {
	e, slots := c.loadAll(t)
	s := c.serveStream(t, e, slots[0], nil)
	defer s.endStream()

	m := c.Models[1]
	for range 10 {
		if err := e.Unload(m); err != nil {
			t.Fatalf("unload: %v", err)
		}
		s.awaitBatches(1)

		f, err := e.Load(m)
		if err != nil {
			t.Fatalf("load: %v", err)
		}
		if f.Static < 0 || f.Dynamic < 0 {
			t.Errorf("footprint %+v", f)
		}
		s.awaitBatches(1)
	}

	s.endStream()
	input := c.fillRow(m, slots[1], 0, rand.New(rand.NewPCG(1, 1)))
	if err := device.Execute(e, device.Batch{Model: m, Slot: slots[1], Rows: 1}); err != nil {
		t.Fatal(err)
	}
	if got, want := Output(m, slots[1], 0), c.Want(m, input); !bytes.Equal(got, want) {
		t.Errorf("after it was loaded again: % x, want % x", headOf(got), headOf(want))
	}
}

// updateUnderLoad replaces the weights of the model that is served: each row has the old output or the new one, and
// after the Update the new one.
func (c Case) updateUnderLoad(t *testing.T) {
	e, slots := c.loadAll(t)
	var switches, updated atomic.Bool
	s := c.serveStream(t, e, slots[0], func(input, got []byte) bool {
		return switches.Load() && bytes.Equal(got, c.Updated(input)) || !updated.Load() && bytes.Equal(got, c.Want(c.Models[0], input))
	})
	defer s.endStream()

	m := c.Models[0]
	if _, err := e.Prepare(m, c.Other); !errors.Is(err, device.ErrShape) {
		t.Errorf("update with other shapes: %v, want %v", err, device.ErrShape)
	}

	s.awaitBatches(2)
	c.prepareInVain(t, e, s)
	u, err := e.Prepare(m, c.Weights)
	if err != nil {
		t.Fatalf("prepare: %v", err)
	}
	switches.Store(true)
	if err := u.Switch(); err != nil {
		t.Fatalf("switch: %v", err)
	}
	s.awaitBatches(2) // of which the first may have been submitted before
	updated.Store(true)
	s.awaitBatches(5)

	s.endStream()

	back := *m.Source
	u, err = e.Prepare(m, &back)
	if err != nil {
		t.Fatalf("prepare the first weights: %v", err)
	}
	if err := u.Switch(); err != nil {
		t.Fatalf("switch back: %v", err)
	}
	input := c.fillRow(m, slots[0], 0, rand.New(rand.NewPCG(1, 1)))
	if err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: 1}); err != nil {
		t.Fatal(err)
	}
	if got, want := Output(m, slots[0], 0), c.Want(m, input); !bytes.Equal(got, want) {
		t.Errorf("with its first weights again: % x, want % x", headOf(got), headOf(want))
	}
}

// prepareInVain prepares weights and discards them: batches beside them have the old output before and after, and no
// memory is lost.
func (c Case) prepareInVain(t *testing.T, e device.Executor, s *stream) {
	m, held := c.Models[0], int64(-1)
	for range 3 {
		u, err := e.Prepare(m, c.Weights)
		if err != nil {
			t.Fatalf("prepare: %v", err)
		}
		s.awaitBatches(3)
		if err := u.Discard(); err != nil {
			t.Fatalf("discard: %v", err)
		}
		s.awaitBatches(2)

		now := e.Memory().DeviceBytes
		if held >= 0 && now > held {
			t.Errorf("%d bytes on the device after a discarded update, %d before", now, held)
		}
		held = now
	}
}

// loadFails checks that a failed load leaves nothing behind and does not touch what is served.
func (c Case) loadFails(t *testing.T) {
	e, slots := c.loadAll(t)
	before := e.Memory()
	s := c.serveStream(t, e, slots[0], nil)
	defer s.endStream()
	for range 3 {
		if _, err := e.Load(c.Corrupt); err == nil || errors.Is(err, device.ErrUnsupported) {
			t.Errorf("a corrupt model: %v, want an error that is not for another executor to make up for", err)
		}

		// Only this error may send a model to the next executor: see device.ErrUnsupported.
		if c.Foreign != nil {
			if _, err := e.Load(c.Foreign); !errors.Is(err, device.ErrUnsupported) {
				t.Errorf("a model for another executor: %v, want %v", err, device.ErrUnsupported)
			}
		}
		if _, err := e.Load(c.Models[0]); err == nil {
			t.Error("a model was loaded twice")
		}

		// What is served goes on after each failure.
		s.awaitBatches(1)
	}
	s.endStream()

	// Less than before is no fault: only what a failed load left behind is one.
	if after := e.Memory(); after.DeviceBytes > before.DeviceBytes || after.SlotBytes != before.SlotBytes {
		t.Errorf("%+v before loads that fail, %+v after", before, after)
	}
}

// checkUnload checks that batches of an unloaded model are refused, and that its memory is free again.
func (c Case) checkUnload(t *testing.T) {
	e, slots := c.loadAll(t)
	m := c.Models[1]
	if err := e.Unload(m); err != nil {
		t.Fatal(err)
	}
	if err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: 1}); err == nil {
		t.Error("an unloaded model ran")
	}
	if err := e.Unload(m); err == nil {
		t.Error("a model was unloaded twice")
	}
	if _, err := e.Prepare(m, m.Source); err == nil {
		t.Error("an unloaded model was updated")
	}

	if err := e.Unload(c.Models[0]); err != nil {
		t.Fatal(err)
	}
	if left := e.Memory(); left.DeviceBytes != 0 || left.PinnedBytes != 0 {
		t.Errorf("with nothing loaded %+v is held", left)
	}
}

// slotsChange replaces each slot by a larger one, then by one of the first size.
func (c Case) slotsChange(t *testing.T) {
	e, slots := c.loadAll(t)
	size := device.SlotBytes(c.Models)
	before := e.Memory().SlotBytes
	r := rand.New(rand.NewPCG(1, 1))

	// Larger, then as before: a slot's size may go either way while models stay loaded.
	for _, bytesEach := range []int{3 * size, size} {
		for i, fresh := range Slots(t, slotCount, bytesEach) {
			if err := e.AddSlot(fresh); err != nil {
				t.Fatalf("add a slot of %d bytes: %v", bytesEach, err)
			}
			if err := e.DropSlot(slots[i]); err != nil {
				t.Fatalf("drop a slot: %v", err)
			}

			slots[i] = fresh
			for _, m := range c.Models {
				input := c.fillRow(m, fresh, 0, r)
				if err := device.Execute(e, device.Batch{Model: m, Slot: fresh, Rows: 1}); err != nil {
					t.Fatal(err)
				}
				if got, want := Output(m, fresh, 0), c.Want(m, input); !bytes.Equal(got, want) {
					t.Errorf("%s on a slot of %d bytes: % x, want % x", m.Name, bytesEach, headOf(got), headOf(want))
				}
			}
		}
	}

	// Dropped slots give back all that the executor had on the device for them.
	if after := e.Memory().SlotBytes; after != before {
		t.Errorf("slots take %d bytes on the device, %d before", after, before)
	}

	if err := e.AddSlot(Slots(t, 1, device.Align)[0]); err == nil {
		t.Error("a slot was added that is too small for what is loaded")
	}
}

// yieldStream lets the stream go on.
func yieldStream() { runtime.Gosched() }
