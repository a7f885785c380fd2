package wire

import (
	"fmt"
	"time"
)

// The messages by which models are loaded on a backend's GPUs and unloaded while it serves. They came with version 5: a
// peer of version 4 has every model on every GPU, from its hello on.

// PlacementOp is what a Placement asks for.
type PlacementOp uint8

// The operations.
const (
	Load   PlacementOp = 1 + iota // a model that is loaded stays as it is
	Update                        // the weights that the repository has now; one that is not loaded is loaded
	Unload
	placementOpEnd
)

// String names the operation.
func (o PlacementOp) String() string {
	if o > 0 && o < placementOpEnd {
		return [placementOpEnd]string{"", "load", "update", "unload"}[o]
	}
	return fmt.Sprintf("operation %d", uint8(o))
}

// Placement asks a backend to change what one of its GPUs has loaded. Scheduler → backend. Each ends with a report that
// has its number.
type Placement struct {
	Number uint64 // the scheduler's, not 0
	Op     PlacementOp
	GPU    uint32 // index into BackendHello.GPUs
	Model  uint32 // index into BackendHello.Models, or that of a Loadable
}

// PlacementState is how a model stands on a GPU.
type PlacementState uint8

// The states. Of a model that was loaded before, LoadFailed leaves in force what was.
const (
	Loaded     PlacementState = 1 + iota // the GPU takes batches of it
	Unloading                            // it takes no more; those under way end first
	Unloaded                             // its memory is free
	LoadFailed                           // Text says why
	placementStateEnd
)

// String names the state.
func (s PlacementState) String() string {
	if s > 0 && s < placementStateEnd {
		return [placementStateEnd]string{"", "loaded", "unloading", "unloaded", "load failed"}[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// PlacementReport tells how a model stands on a GPU. Backend → scheduler, at each change.
type PlacementReport struct {
	Number          uint64 // of the placement that asked for it; 0: the backend's own doing
	GPU, Model      uint32
	State           PlacementState
	Load, WarmUp    int64  // ns that loading took, and running every batch size after it
	Static, Dynamic uint64 // bytes that the model holds while it is loaded, and more while its largest batch runs; 0: not known
	Text            string // why it failed
}

// Loadable tells of a model that a backend can load, new or changed since its hello. Backend → scheduler.
type Loadable struct {
	Number uint32 // by which placements and batches name it: what follows the hello's, or that of a model known before
	Model  BackendModel
}

const (
	placementBytes          = 8 + 1 + 4 + 4
	placementReportBytesMin = 8 + 4 + 4 + 1 + 4*8 + 2
	loadableBytesMin        = 4 + modelBytesMin + 2 + 2
)

// Placements of a plan have numbers of their own, which tell the plan: the highest bit, then the plan's number, then the
// order's. So a backend knows the latest plan that it was part of.
const (
	planOrder = 1 << 63
	orderBits = 22

	// PlanNumberMax is the highest number of a plan: milliseconds since 1970 fit until 2039.
	PlanNumberMax = planOrder>>orderBits - 1
)

// NumberOrder returns the number of a plan's placement. Orders are told apart among some millions that follow one another;
// 0 is none.
func NumberOrder(plan, order uint64) uint64 {
	return planOrder | (plan&PlanNumberMax)<<orderBits | order&(1<<orderBits-1)
}

// PlanOf returns the plan that a placement of this number is of; false: it is of none.
func PlanOf(number uint64) (plan uint64, ok bool) {
	return number >> orderBits & PlanNumberMax, number&planOrder != 0
}

// AppendPlacements appends frames carrying m.
func AppendPlacements(dst []byte, m []Placement) []byte {
	return appendFixed(dst, TypePlacement, m, placementBytes, func(b []byte, m *Placement) {
		le.PutUint64(b, m.Number)
		b[8] = byte(m.Op)
		le.PutUint32(b[9:], m.GPU)
		le.PutUint32(b[13:], m.Model)
	})
}

// DecodePlacements decodes f into fresh memory: placements are rare.
func DecodePlacements(f Frame) ([]Placement, error) {
	return decodeVaried(nil, f, TypePlacement, func(d *decoder, m *Placement) {
		m.Number, m.Op, m.GPU, m.Model = d.u64(), PlacementOp(d.u8()), d.u32(), d.u32()
		if d.err == nil && (m.Op == 0 || m.Op >= placementOpEnd) {
			d.keepError(fmt.Errorf("%w: %v, want 1 to %d", ErrMalformed, m.Op, placementOpEnd-1))
		}
	})
}

// AppendPlacementReports appends frames carrying m; texts are cut to TextBytesMax.
func AppendPlacementReports(dst []byte, m []PlacementReport) ([]byte, error) {
	return appendVaried(dst, TypePlacementReport, Version, m, func(e *encoder, r *PlacementReport) {
		e.u64(r.Number)
		e.u32(r.GPU)
		e.u32(r.Model)
		e.b = append(e.b, byte(r.State))
		e.u64(uint64(r.Load))
		e.u64(uint64(r.WarmUp))
		e.u64(r.Static)
		e.u64(r.Dynamic)
		e.text("why a load failed", cutText(r.Text), TextBytesMax)
	})
}

// DecodePlacementReports decodes f into fresh memory.
func DecodePlacementReports(f Frame) ([]PlacementReport, error) {
	return decodeVaried(nil, f, TypePlacementReport, func(d *decoder, r *PlacementReport) {
		r.Number, r.GPU, r.Model, r.State = d.u64(), d.u32(), d.u32(), PlacementState(d.u8())
		if d.err == nil && (r.State == 0 || r.State >= placementStateEnd) {
			d.keepError(fmt.Errorf("%w: %v, want 1 to %d", ErrMalformed, r.State, placementStateEnd-1))
		}
		r.Load, r.WarmUp = int64(d.u64()), int64(d.u64())
		r.Static, r.Dynamic = d.u64(), d.u64()
		r.Text = d.text("why a load failed", TextBytesMax)
	})
}

// AppendLoadables appends frames carrying m.
func AppendLoadables(dst []byte, m []Loadable) ([]byte, error) {
	return appendLoadables(dst, m, Version)
}

func appendLoadables(dst []byte, m []Loadable, version uint16) ([]byte, error) {
	return appendVaried(dst, TypeLoadable, version, m, func(e *encoder, l *Loadable) {
		e.u32(l.Number)
		e.backendModel(&l.Model)
		e.loaded(l.Model.Loaded)
	})
}

// DecodeLoadables decodes f into fresh memory.
func DecodeLoadables(f Frame) ([]Loadable, error) {
	return decodeVaried(nil, f, TypeLoadable, func(d *decoder, l *Loadable) {
		l.Number = d.u32()
		d.backendModel(&l.Model)
		l.Model.Loaded = d.loaded()
	})
}

func (e *encoder) backendModel(m *BackendModel) {
	e.putModel(&m.Info)
	e.putCount("profile of "+m.Info.Name, len(m.Profile), ProfileMax)
	for _, exec := range m.Profile {
		e.u64(uint64(exec))
	}
}

func (d *decoder) backendModel(m *BackendModel) {
	d.readModel(&m.Info)
	if n := d.readCount("profile", ProfileMax, 8); n > 0 {
		m.Profile = make([]time.Duration, n)
	}
	for k := range m.Profile {
		m.Profile[k] = time.Duration(d.u64())
	}
}

// loaded writes for each GPU whether it has a model; nothing but a zero where all have it.
func (e *encoder) loaded(gpus []bool) {
	e.putCount("gpus that have a model", len(gpus), GPUsMax)
	for _, has := range gpus {
		e.bool(has)
	}
}

func (d *decoder) loaded() (gpus []bool) {
	if n := d.readCount("gpus that have a model", GPUsMax, 1); n > 0 {
		gpus = make([]bool, n)
	}
	for i := range gpus {
		gpus[i] = d.bool("loaded")
	}
	return gpus
}

// cutText cuts a text to what a message may carry, at a rune's beginning.
func cutText(s string) string {
	if len(s) <= TextBytesMax {
		return s
	}

	n := TextBytesMax
	// Bytes 10xxxxxx continue a rune; the cut must not leave half of one, which no peer would accept.
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n]
}
