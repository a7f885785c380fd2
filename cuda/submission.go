package cuda

import "unsafe"

// Address is a place in device memory.
type Address uint64

// The commands; gpu.h has the same numbers.
const (
	opCopyIn uint32 = iota + 1
	opCopyOut
	opCopy
	opFill
	opLaunch
	opRecord
	opWait
	opGraph
	opCall
)

// command is one entry of a Submission. Its layout is that of struct gpu_command in gpu.h: 96 bytes without pointers,
// so that the array crosses cgo unchanged.
type command struct {
	op     uint32
	shared uint32 // bytes of dynamic shared memory of a launch; the byte of a fill
	stream uint64
	a      uint64 // destination | event | kernel | graph
	b      uint64 // source | offset of the launch's parameters in the Submission
	n      uint64 // bytes
	grid   [3]uint32
	block  [3]uint32
	_      [4]uint64
}

var _ [0]struct{} = [unsafe.Sizeof(command{}) - 96]struct{}{}

// Dim is the extent of a grid or a block.
type Dim struct{ X, Y, Z uint32 }

// Submission is a list of commands that Device.Submit enqueues in one cgo call. The zero value is ready for use, and
// Reset keeps its memory. Only one goroutine at a time may use it.
type Submission struct {
	commands []command
	params   []byte // parameters of the launches, each at a multiple of 16
}

// Reset empties the submission for reuse.
func (s *Submission) Reset() {
	s.commands = s.commands[:0]
	s.params = s.params[:0]
}

// Len returns the number of commands.
func (s *Submission) Len() int { return len(s.commands) }

// CopyIn copies len(src) bytes of host memory to dst. src must not change until the command is done.
func (s *Submission) CopyIn(st *Stream, dst Address, src []byte) {
	if len(src) == 0 {
		return
	}
	s.commands = append(s.commands, command{op: opCopyIn, stream: st.handle, a: uint64(dst),
		b: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(src)))), n: uint64(len(src))})
}

// CopyOut copies len(dst) bytes of device memory at src to dst.
func (s *Submission) CopyOut(st *Stream, dst []byte, src Address) {
	if len(dst) == 0 {
		return
	}
	s.commands = append(s.commands, command{op: opCopyOut, stream: st.handle,
		a: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(dst)))), b: uint64(src), n: uint64(len(dst))})
}

// Copy copies n bytes within the device.
func (s *Submission) Copy(st *Stream, dst, src Address, n int64) {
	if n > 0 {
		s.commands = append(s.commands, command{op: opCopy, stream: st.handle, a: uint64(dst), b: uint64(src), n: uint64(n)})
	}
}

// Fill sets n bytes at dst to value.
func (s *Submission) Fill(st *Stream, dst Address, value byte, n int64) {
	if n > 0 {
		s.commands = append(s.commands, command{op: opFill, stream: st.handle, a: uint64(dst), shared: uint32(value), n: uint64(n)})
	}
}

// Launch runs a kernel that takes one struct by value. params are that struct's bytes; they are copied.
func (s *Submission) Launch(st *Stream, k Kernel, grid, block Dim, shared uint32, params []byte) {
	at := (len(s.params) + 15) &^ 15
	for len(s.params) < at {
		s.params = append(s.params, 0)
	}
	s.params = append(s.params, params...)

	// A library's kernel is a host function that enqueues its own work.
	op := opLaunch
	if k.call {
		op = opCall
	}

	s.commands = append(s.commands, command{op: op, shared: shared, stream: st.handle, a: k.handle,
		b: uint64(at), n: uint64(len(params)),
		grid: [3]uint32{grid.X, grid.Y, grid.Z}, block: [3]uint32{block.X, block.Y, block.Z}})
}

// Record completes ev when all commands enqueued on st so far are done.
func (s *Submission) Record(st *Stream, ev *Event) {
	s.commands = append(s.commands, command{op: opRecord, stream: st.handle, a: ev.handle})
}

// Wait delays the following commands on st until the latest Record of ev before it has completed.
func (s *Submission) Wait(st *Stream, ev *Event) {
	s.commands = append(s.commands, command{op: opWait, stream: st.handle, a: ev.handle})
}

// Graph runs a captured graph.
func (s *Submission) Graph(st *Stream, g *Graph) {
	s.commands = append(s.commands, command{op: opGraph, stream: st.handle, a: g.handle})
}
