package gpu

import (
	"context"
	"errors"

	"downbeat.dev/cuda"
)

// Ceilings are the copy rates of this machine, in GB/s, an upper bound for every batch.
type Ceilings struct {
	Device     float64 `json:"device_copy_gbps"` // within the device, bytes read and written
	In         float64 `json:"copy_in_gbps"`     // from pinned memory
	InPageable float64 `json:"copy_in_pageable_gbps"`
	Out        float64 `json:"copy_out_gbps"`
}

const (
	ceilingBytes  = 64 << 20
	ceilingRounds = 8
)

func measureCeilings(ctx context.Context, dev *cuda.Device) (*Ceilings, error) {
	t := copies{dev: dev}
	defer t.closeCopies()
	if err := t.openCopies(); err != nil {
		return nil, err
	}

	a, b := t.memory[0].Address(), t.memory[1].Address()
	var out Ceilings

	// A copy within the device reads and writes each byte, so it counts twice.
	for _, k := range []struct {
		to    *float64
		bytes float64
		add   func(s *cuda.Submission)
	}{
		{&out.Device, 2 * ceilingBytes, func(s *cuda.Submission) { s.Copy(t.st, b, a, ceilingBytes) }},
		{&out.In, ceilingBytes, func(s *cuda.Submission) { s.CopyIn(t.st, a, t.pinned.Bytes()[:ceilingBytes]) }},
		{&out.InPageable, ceilingBytes, func(s *cuda.Submission) { s.CopyIn(t.st, a, t.pageable) }},
		{&out.Out, ceilingBytes, func(s *cuda.Submission) { s.CopyOut(t.st, t.pinned.Bytes()[:ceilingBytes], a) }},
	} {
		ns, err := t.timeCopies(ctx, k.add)
		if err != nil {
			return nil, err
		}
		*k.to = k.bytes * ceilingRounds / ns
	}
	return &out, nil
}

type copies struct {
	dev      *cuda.Device
	st       *cuda.Stream
	from, to *cuda.Event
	memory   [2]*cuda.Memory
	pinned   *cuda.Slab
	pageable []byte
}

// openCopies allocates everything that the copies use.
func (t *copies) openCopies() (err error) {
	if t.st, err = t.dev.NewStream(); err != nil {
		return err
	}
	if t.from, err = t.dev.NewEvent(); err != nil {
		return err
	}
	if t.to, err = t.dev.NewEvent(); err != nil {
		return err
	}
	for i := range t.memory {
		if t.memory[i], err = t.dev.Alloc(ceilingBytes); err != nil {
			return err
		}
	}
	t.pageable = make([]byte, ceilingBytes)
	t.pinned, err = t.dev.AllocHost(ceilingBytes)
	return err
}

// timeCopies returns the nanoseconds of ceilingRounds copies, after an uncounted one.
func (t *copies) timeCopies(ctx context.Context, add func(s *cuda.Submission)) (float64, error) {
	var s cuda.Submission

	// The first copy raises the clock rates and touches the pages; it precedes the first event.
	add(&s)
	s.Record(t.st, t.from)
	for range ceilingRounds {
		add(&s)
	}

	s.Record(t.st, t.to)
	if err := errors.Join(t.dev.Submit(&s), t.dev.Wait(ctx, t.to)); err != nil {
		return 0, err
	}

	// The device's clock excludes the time of submitting and waiting on the host.
	took, err := t.dev.Elapsed(t.from, t.to)
	return float64(max(took, 1)), err
}

func (t *copies) closeCopies() {
	t.pinned.Free()
	for _, m := range t.memory {
		m.Free()
	}
	t.to.Free()
	t.from.Free()
	t.st.Free()
}
