package kernels

import "downbeat.dev/cuda"

// numbers is device memory as a Go form sees it: real numbers are float32, whatever the stored type.
type numbers struct {
	*cuda.DeviceMemory
	real int32
	out  []written
}

// written is a result that is stored in another type after the form has run.
type written struct {
	at cuda.Address
	v  []float32
}

// readNumbers returns n real numbers.
func (m *numbers) readNumbers(p uint64, n int) []float32 {
	if m.real == Float32 {
		return m.Float32s(cuda.Address(p), n)
	}
	return decodeHalf(m.real, m.Uint16s(cuda.Address(p), n))
}

// readOptional returns n real numbers; nil for the address 0.
func (m *numbers) readOptional(p uint64, n int) []float32 {
	if p == 0 {
		return nil
	}
	return m.readNumbers(p, n)
}

// resultRoom returns room for n real numbers that storeResults puts at p.
func (m *numbers) resultRoom(p uint64, n int) []float32 {
	if m.real == Float32 {
		return m.Float32s(cuda.Address(p), n)
	}
	m.Uint16s(cuda.Address(p), n) // refuses bad addresses now
	v := make([]float32, n)
	m.out = append(m.out, written{cuda.Address(p), v})
	return v
}

// storeResults stores the results.
func (m *numbers) storeResults() {
	for _, w := range m.out {
		encodeHalf(m.real, m.Uint16s(w.at, len(w.v)), w.v)
	}
	clear(m.out)
}

func decodeHalf(real int32, from []uint16) []float32 {
	v := make([]float32, len(from))
	for i, h := range from {
		if real == Float16 {
			v[i] = FromHalf(h)
		} else {
			v[i] = FromBFloat(h)
		}
	}
	return v
}

func encodeHalf(real int32, to []uint16, v []float32) {
	for i, f := range v {
		if real == Float16 {
			to[i] = ToHalf(f)
		} else {
			to[i] = ToBFloat(f)
		}
	}
}

// Halves returns v as binary16 or bfloat16 numbers.
func Halves(real int32, v []float32) []uint16 {
	to := make([]uint16, len(v))
	encodeHalf(real, to, v)
	return to
}
