package wire

import (
	"fmt"
	"strings"
	"time"
)

// Messages by which models are loaded on a backend's GPUs and unloaded while it serves, since version 5. A peer of
// version 4 has every model on every GPU from its hello on.

// PlacementOp is the operation of a Placement.
type PlacementOp uint8

// The operations.
const (
	Load   PlacementOp = 1 + iota // load the model; one that is loaded already stays unchanged
	Update                        // load the repository's present weights
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

// Placement asks a backend to change the loaded models of one of its GPUs. Scheduler → backend. Each ends with a
// report of its number.
type Placement struct {
	Number uint64 // the scheduler's, not 0
	Op     PlacementOp
	GPU    uint32 // index into BackendHello.GPUs
	Model  uint32 // index into BackendHello.Models, or that of a Loadable
}

// PlacementState is the state of a model on a GPU.
type PlacementState uint8

// The states. After LoadFailed, a model that was loaded before stays in force.
const (
	Loaded     PlacementState = 1 + iota // the GPU takes batches of it
	Unloading                            // the GPU takes no more batches of it; those in flight end first
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

// PlacementReport reports the state of a model on a GPU. Backend → scheduler, at each change.
type PlacementReport struct {
	Number          uint64 // of the placement that asked for it; 0: the backend changed it by itself
	GPU, Model      uint32
	State           PlacementState
	Load, WarmUp    int64  // ns of loading, and of running every batch size afterwards
	Static, Dynamic uint64 // bytes that the loaded model holds, and the additional bytes while its largest batch runs; 0: unknown
	Text            string // why it failed
}

// Loadable describes a model that a backend can load, new or changed since its hello. Backend → scheduler.
type Loadable struct {
	Number uint32 // its number in placements and batches: the next after the hello's, or that of a known model
	Model  BackendModel
}

const (
	placementBytes          = 8 + 1 + 4 + 4
	placementReportBytesMin = 8 + 4 + 4 + 1 + 4*8 + 2
	loadableBytesMin        = 4 + modelBytesMin + 2 + 2
)

// Placements of a plan have numbers that contain the plan's: the highest bit, the plan's number, then the order's. So
// a backend knows the latest plan that it was part of.
const (
	planOrder = 1 << 63
	orderBits = 22

	// PlanNumberMax is the highest number of a plan: milliseconds since 1970 fit until 2039.
	PlanNumberMax = planOrder>>orderBits - 1
)

// NumberOrder returns the number of a plan's placement. Orders repeat after some millions; 0 is none.
func NumberOrder(plan, order uint64) uint64 {
	return planOrder | (plan&PlanNumberMax)<<orderBits | order&(1<<orderBits-1)
}

// PlanOf returns the plan of a placement with this number; false if it belongs to no plan.
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
	if e.version >= LoadVersion {
		e.u64(uint64(m.Load))
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
	if d.hasFieldsOf(LoadVersion) {
		m.Load = time.Duration(d.u64())
	}
}

// loaded writes whether each GPU has a model; a single zero if all have it.
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

// cutText makes an error's text fit a message: UTF-8, as it may quote a file or a library, and cut to the limit at a
// rune boundary. A message that cannot be encoded would be lost, and with it the end that its receiver waits for.
func cutText(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= TextBytesMax {
		return s
	}

	n := TextBytesMax
	// Bytes 10xxxxxx continue a rune; a peer would refuse a partial one.
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n]
}
