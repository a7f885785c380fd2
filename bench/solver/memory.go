package solver

import (
	"errors"
	"math"
)

var errMemory = errors.New("the problem does not fit the module's 2 GiB of memory")

// allocateBytes returns the address of size bytes in the module's memory.
func (m *machine) allocateBytes(size int) uint64 {
	if m.err != nil {
		return 0
	}
	if size > math.MaxInt32 {
		m.err = errMemory
		return 0
	}

	// Allocate at least 8 bytes: for zero bytes malloc may return 0, which means failure.
	at := m.callFunction(malloc, uint64(max(8, size)))
	if at == 0 && m.err == nil {
		m.err = errMemory
	}
	return at
}

func (m *machine) passFloats(values []float64) uint64 {
	at := m.allocateBytes(8 * len(values))
	if m.err == nil {
		for i, x := range values {
			m.memory.WriteFloat64Le(uint32(at)+uint32(8*i), x)
		}
	}
	return at
}

func (m *machine) passInts(values []int32) uint64 {
	at := m.allocateBytes(4 * len(values))
	if m.err == nil {
		for i, x := range values {
			m.memory.WriteUint32Le(uint32(at)+uint32(4*i), uint32(x))
		}
	}
	return at
}

// passText writes a C string.
func (m *machine) passText(s string) uint64 {
	at := m.allocateBytes(len(s) + 1)
	if m.err == nil {
		m.memory.WriteString(uint32(at), s+"\x00")
	}
	return at
}

func (m *machine) readFloats(at uint64, n int) []float64 {
	if m.err != nil {
		return nil
	}
	out := make([]float64, n)
	for i := range out {
		out[i], _ = m.memory.ReadFloat64Le(uint32(at) + uint32(8*i))
	}
	return out
}

// readInfo reads an integer information value of HiGHS.
func (m *machine) readInfo(highs uint64, name string) int32 {
	at := m.allocateBytes(8)
	m.mustCall(name, highsGetInt, highs, m.passText(name), at)
	x, _ := m.memory.ReadUint32Le(uint32(at))
	return int32(x)
}

func (m *machine) infoFloat(highs uint64, name string) float64 {
	at := m.allocateBytes(8)
	m.mustCall(name, highsGetDouble, highs, m.passText(name), at)
	x, _ := m.memory.ReadFloat64Le(uint32(at))
	return x
}
