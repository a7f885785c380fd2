package cuda

import (
	"slices"
	"unsafe"
)

// DeviceMemory is the memory of an emulated device. It checks every access against the allocated blocks. An address
// that was freed, was never allocated, or runs past its block is an illegal address.
type DeviceMemory struct {
	total, used int64
	next        uint64
	blocks      []memoryBlock // by address; never changed in place, because a running kernel reads a copy of this struct
}

type memoryBlock struct {
	addr  uint64
	bytes []byte
}

// NewDeviceMemory returns separate memory of a size, to run a KernelFunc without a device.
func NewDeviceMemory(bytes int64) *DeviceMemory { return &DeviceMemory{total: bytes, next: 1 << 40} }

// Alloc returns zeroed memory.
func (m *DeviceMemory) Alloc(bytes int64) (Address, error) {
	p, c := m.alloc(bytes)
	return Address(p), codeError(c, "alloc")
}

const memoryGuard = 1 << 16 // unmapped bytes between blocks, so that overruns are found

func (m *DeviceMemory) alloc(bytes int64) (uint64, Code) {
	if bytes > m.total-m.used {
		return 0, CodeOutOfMemory
	}

	// No address is used twice, so that a use after free is found.
	addr := m.next
	m.next += (uint64(bytes)+255)&^255 + memoryGuard
	m.used += bytes

	// Create a new slice, because a running kernel reads the old one without a lock.
	m.blocks = append(slices.Clip(m.blocks), memoryBlock{addr: addr, bytes: alignedBytes(bytes)})
	return addr, CodeSuccess
}

// alignedBytes returns zeroed memory aligned to 8, for views as wider types.
func alignedBytes(n int64) []byte {
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), n)
}

func (m *DeviceMemory) free(addr uint64) Code {
	i, ok := m.indexOf(addr)
	if !ok || m.blocks[i].addr != addr {
		return CodeInvalidValue
	}

	// Running kernels read the old slice without a lock, so it stays unchanged.
	m.used -= int64(len(m.blocks[i].bytes))
	m.blocks = slices.Delete(slices.Clone(m.blocks), i, i+1)
	return CodeSuccess
}

// indexOf returns the last block that starts at or before addr. Addresses only grow, so blocks is sorted.
func (m *DeviceMemory) indexOf(addr uint64) (int, bool) {
	i, exact := slices.BinarySearchFunc(m.blocks, addr, func(b memoryBlock, a uint64) int {
		switch {
		case b.addr < a:
			return -1
		case b.addr > a:
			return 1
		}
		return 0
	})
	if !exact {
		i--
	}
	return i, i >= 0
}

// illegalAddress is the value with which a kernel panics; the emulation turns it into CodeIllegalAddress.
type illegalAddress struct{ addr, bytes uint64 }

// Bytes returns n bytes of device memory at addr.
func (m *DeviceMemory) Bytes(addr Address, n int64) []byte {
	b, ok := m.view(uint64(addr), n)
	if !ok {
		panic(illegalAddress{uint64(addr), uint64(n)})
	}
	return b
}

func (m *DeviceMemory) view(addr uint64, n int64) ([]byte, bool) {
	i, ok := m.indexOf(addr)
	if !ok || n < 0 {
		return nil, false
	}
	b := m.blocks[i]
	off := addr - b.addr

	// Compare without a sum, which could overflow.
	if off > uint64(len(b.bytes)) || uint64(n) > uint64(len(b.bytes))-off {
		return nil, false
	}

	return b.bytes[off : off+uint64(n) : off+uint64(n)], true
}

// Float32s returns n floats at addr, which must be a multiple of 4.
func (m *DeviceMemory) Float32s(addr Address, n int) []float32 {
	return elementsAt[float32](m, addr, n)
}

// Int32s returns n 32-bit integers at addr, which must be a multiple of 4.
func (m *DeviceMemory) Int32s(addr Address, n int) []int32 { return elementsAt[int32](m, addr, n) }

// Int64s returns n 64-bit integers at addr, which must be a multiple of 8.
func (m *DeviceMemory) Int64s(addr Address, n int) []int64 { return elementsAt[int64](m, addr, n) }

// Uint16s returns n 16-bit words (half floats) at addr, which must be a multiple of 2.
func (m *DeviceMemory) Uint16s(addr Address, n int) []uint16 { return elementsAt[uint16](m, addr, n) }

func elementsAt[T any](m *DeviceMemory, addr Address, n int) []T {
	var t T
	size := int64(unsafe.Sizeof(t))
	if n == 0 {
		return nil
	}

	b := m.Bytes(addr, int64(n)*size)
	if uint64(addr)%uint64(size) != 0 {
		panic(illegalAddress{uint64(addr), uint64(n) * uint64(size)}) // misaligned, as on the device
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}
