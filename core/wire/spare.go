package wire

import (
	"fmt"
	"math"
)

// Messages by which backends get time on their idle GPUs for spare work: training steps and other work that has a
// length and no deadline. Since version 8; a backend of an earlier version offers none.

// SpareVersion is the first version in which backends offer spare work.
const SpareVersion = 8

// SpareOffer offers, changes or withdraws spare work. Backend → scheduler. One of its steps runs at a time. If the end of a step is never reported, the work gets no more steps until it is offered again.
type SpareOffer struct {
	Work   uint32  // the backend's number for it
	Name   string  // description for operators, with the model
	Step   int64   // ns that a step takes, as an upper bound that normally holds; 0: the work is withdrawn
	Weight float64 // its share of the spare time among other work; above 0 unless it is withdrawn
	GPU    uint32  // the only one that runs its steps, as an index into BackendHello.GPUs plus one; 0: any
}

// SpareStart makes a backend run one step of spare work. Scheduler → backend. Each is answered by one SpareEnd.
type SpareStart struct {
	Number uint64 // the scheduler's; the answer repeats it
	Work   uint32
	GPU    uint32 // index into BackendHello.GPUs
	Start  int64  // ns from now, when the GPU is free
	Step   int64  // ns for which the GPU is reserved from then on
}

// SpareEnd reports that a step has ended. Backend → scheduler.
type SpareEnd struct {
	Number uint64
	FreeIn int64 // ns from now until the GPU is free
}

const (
	spareOfferBytesMin = 4 + 2 + 8 + 8
	spareStartBytes    = 8 + 4 + 4 + 8 + 8
	spareEndBytes      = 8 + 8
)

// AppendSpareOffers appends frames carrying m.
func AppendSpareOffers(dst []byte, m []SpareOffer) ([]byte, error) {
	return appendSpareOffers(dst, m, Version)
}

func appendSpareOffers(dst []byte, m []SpareOffer, version uint16) ([]byte, error) {
	return appendVaried(dst, TypeSpareOffer, version, m, func(e *encoder, m *SpareOffer) {
		o := *m

		// A scheduler that does not know the field would order steps on other GPUs, where they cannot run.
		if version < PinnedVersion && o.GPU != 0 {
			o.Step = 0
		}
		e.u32(o.Work)
		e.text("name of spare work", o.Name, NameBytesMax)
		e.u64(uint64(o.Step))
		e.u64(math.Float64bits(o.Weight))
		if version >= PinnedVersion {
			e.u32(o.GPU)
		}
	})
}

// DecodeSpareOffers decodes f into fresh memory: offers are rare.
func DecodeSpareOffers(f Frame) ([]SpareOffer, error) {
	return decodeVaried(nil, f, TypeSpareOffer, func(d *decoder, m *SpareOffer) {
		m.Work, m.Name = d.u32(), d.text("name of spare work", NameBytesMax)
		m.Step, m.Weight = int64(d.u64()), math.Float64frombits(d.u64())
		if d.hasFieldsOf(PinnedVersion) {
			m.GPU = d.u32()
		}

		// A NaN weight would spoil every comparison.
		if d.err == nil && m.Step != 0 && (m.Step < 0 || !(m.Weight > 0 && m.Weight <= math.MaxFloat64)) {
			d.keepError(fmt.Errorf("%w: spare work %d: step %d ns, weight %v, want both above 0", ErrMalformed, m.Work, m.Step, m.Weight))
		}
	})
}

// AppendSpareStarts appends frames carrying m.
func AppendSpareStarts(dst []byte, m []SpareStart) []byte {
	return appendFixed(dst, TypeSpareStart, m, spareStartBytes, func(b []byte, m *SpareStart) {
		le.PutUint64(b, m.Number)
		le.PutUint32(b[8:], m.Work)
		le.PutUint32(b[12:], m.GPU)
		le.PutUint64(b[16:], uint64(m.Start))
		le.PutUint64(b[24:], uint64(m.Step))
	})
}

// DecodeSpareStarts decodes f, using dst's memory.
func DecodeSpareStarts(dst []SpareStart, f Frame) ([]SpareStart, error) {
	return decodeVaried(dst[:0], f, TypeSpareStart, func(d *decoder, m *SpareStart) {
		m.Number, m.Work, m.GPU, m.Start, m.Step = d.u64(), d.u32(), d.u32(), int64(d.u64()), int64(d.u64())
	})
}

// AppendSpareEnds appends frames carrying m.
func AppendSpareEnds(dst []byte, m []SpareEnd) []byte {
	return appendFixed(dst, TypeSpareEnd, m, spareEndBytes, func(b []byte, m *SpareEnd) {
		le.PutUint64(b, m.Number)
		le.PutUint64(b[8:], uint64(m.FreeIn))
	})
}

// DecodeSpareEnds decodes f, using dst's memory.
func DecodeSpareEnds(dst []SpareEnd, f Frame) ([]SpareEnd, error) {
	return decodeVaried(dst[:0], f, TypeSpareEnd, func(d *decoder, m *SpareEnd) {
		m.Number, m.FreeIn = d.u64(), int64(d.u64())
	})
}
