package emu

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/cuda/pace"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
)

// ErrInjected is what a batch ends with under Fault.Err without an error of its own.
var ErrInjected = errors.New("emu: injected error")

// Fault is what goes wrong from now on. The zero value is health.
type Fault struct {
	Slow float64         // times ℓ(b); 0 and 1: as the profile says
	Hang <-chan struct{} // batches do not end before it is closed
	Err  error           // batches fail with it at once; wrap device.ErrLost to let the GPU die
}

// Executor is one emulated GPU. Inject may be called from any goroutine, the rest belongs to one.
type Executor struct {
	timer *pace.Timer
	fault atomic.Pointer[Fault]
}

// New returns an emulated GPU. The caller must Close it.
func New() (*Executor, error) {
	timer, err := pace.New()
	if err != nil {
		return nil, err
	}
	e := &Executor{timer: timer}
	e.fault.Store(&Fault{})
	return e, nil
}

// Inject sets what goes wrong from the next batch on.
func (e *Executor) Inject(f Fault) { e.fault.Store(&f) }

// Load needs a profile and room in the slots.
func (e *Executor) Load(m *device.Model, slots []*device.Slot) error {
	if m.Profile == nil {
		return fmt.Errorf("emulate %s: the model has no profile; give alpha_ms and beta_ms, or measure it with: downbeat profile", m.Name)
	}
	for _, s := range slots {
		if err := s.Fits(m); err != nil {
			return err
		}
	}
	return nil
}

// Execute fills the outputs and returns ℓ(rows) after it was called.
func (e *Executor) Execute(b device.Batch) error {
	start := time.Now()
	f := e.fault.Load()
	if f.Hang != nil {
		<-f.Hang
	}
	if f.Err != nil {
		return f.Err
	}
	for i := range b.Rows {
		fillRow(b.Model, b.Slot, i)
	}
	took := b.Model.Profile.Exec(b.Rows)
	if f.Slow > 0 {
		took = time.Duration(float64(took) * f.Slow)
	}
	if !e.timer.Wait(start.Add(took)) {
		return fmt.Errorf("emulated GPU closed: %w", device.ErrLost)
	}
	return nil
}

// Close frees the timer.
func (e *Executor) Close() error { return e.timer.Close() }

// Profile returns the ℓ(b) that m is emulated with: its own line if it is an emulated model, else
// any profile that was stored for it, so that real models can be tried on GPUs that are not there.
func Profile(m *repo.Model) (*profile.Profile, error) {
	table := m.Table()
	for _, p := range m.Profiles {
		if len(table) < len(p.TableNS) && m.Platform != repo.PlatformEmulated {
			table = p.TableNS
		}
	}
	if len(table) == 0 {
		return nil, fmt.Errorf("model %s version %s has no profile to emulate it by; measure it with: downbeat profile", m.Name, m.Version)
	}
	return FromTable(table)
}

// FromTable builds a profile from ns per batch size.
func FromTable(ns []int64) (*profile.Profile, error) {
	t := make([]time.Duration, len(ns))
	for i, n := range ns {
		t[i] = time.Duration(n)
	}
	return profile.New(t)
}

// seedBytes is how much of each end of a row's inputs decides about its outputs.
const seedBytes = 32

// seed hashes (FNV-1a) both ends of every input of a row.
func seed(m *device.Model, row func(k int) []byte) uint32 {
	h := uint32(2166136261)
	for k := range m.Inputs {
		in := row(k)
		for _, part := range [2][]byte{in[:min(seedBytes, len(in))], in[max(0, len(in)-seedBytes):]} {
			for _, c := range part {
				h = (h ^ uint32(c)) * 16777619
			}
		}
	}
	return h
}

func fillRow(m *device.Model, s *device.Slot, i int) {
	h := seed(m, func(k int) []byte { return s.InputRow(m, k, i) })
	for k := range m.Outputs {
		fill(s.OutputRow(m, k, i), m.Outputs[k].Datatype, h+uint32(k))
	}
}

// Pattern returns the output payload of a row whose input payload is in: what Execute answers.
func Pattern(m *device.Model, in []byte) []byte {
	h := seed(m, func(k int) []byte { return in[m.Inputs[k].Offset:][:m.Inputs[k].Bytes] })
	out := make([]byte, m.OutBytes)
	for k, t := range m.Outputs {
		fill(out[t.Offset:][:t.Bytes], t.Datatype, h+uint32(k))
	}
	return out
}

// fill writes small whole numbers that are valid in every datatype: element j is (h+j) mod 1000 in
// 16 bits and more, mod 100 in 8 bits, and its lowest bit as a BOOL.
func fill(out []byte, datatype string, h uint32) {
	switch datatype {
	case "FP32":
		for j := 0; j+4 <= len(out); j += 4 {
			put(out[j:], uint64(math.Float32bits(float32((h+uint32(j/4))%1000))), 4)
		}
	case "FP64":
		for j := 0; j+8 <= len(out); j += 8 {
			put(out[j:], math.Float64bits(float64((h+uint32(j/8))%1000)), 8)
		}
	case "FP16":
		for j := 0; j+2 <= len(out); j += 2 {
			put(out[j:], uint64(half((h+uint32(j/2))%1000)), 2)
		}
	case "BF16":
		for j := 0; j+2 <= len(out); j += 2 {
			put(out[j:], uint64(math.Float32bits(float32((h+uint32(j/2))%100))>>16), 2)
		}
	case "BOOL":
		for j := range out {
			out[j] = byte(h+uint32(j)) & 1
		}
	case "INT8", "UINT8":
		for j := range out {
			out[j] = byte((h + uint32(j)) % 100)
		}
	default:
		fillInts(out, datatype, h)
	}
}

func fillInts(out []byte, datatype string, h uint32) {
	size := 4
	switch datatype {
	case "INT16", "UINT16":
		size = 2
	case "INT64", "UINT64":
		size = 8
	}
	for j := 0; j+size <= len(out); j += size {
		put(out[j:], uint64((h+uint32(j/size))%1000), size)
	}
}

// put writes the low size bytes of v, little-endian.
func put(b []byte, v uint64, size int) {
	for i := range size {
		b[i] = byte(v >> (8 * i))
	}
}

// half returns the IEEE 754 half-precision bits of a whole number below 2048, which it holds exactly.
func half(n uint32) uint16 {
	if n == 0 {
		return 0
	}
	f := math.Float32bits(float32(n))
	exponent := (f>>23)&0xff - 127 + 15
	return uint16(exponent<<10 | (f>>13)&0x3ff)
}
