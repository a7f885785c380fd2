package layers

import (
	wire "encoding/binary"

	"downbeat.dev/cuda"
)

// BufferKind is the kind of memory of a buffer.
type BufferKind uint8

// The kinds of buffers.
const (
	Activation BufferKind = iota // in the plan's activation memory, at Offset
	Parameter                    // one of Params, by Index
	Input                        // one of Inputs, by Index
	Output                       // one of Outputs, by Index
)

// Buffer is memory that launches refer to.
type Buffer struct {
	Kind        BufferKind
	Bytes       int64
	Index       int
	First, Last int   // the layers that need it, for activations
	Offset      int64 // of activations
}

// Param is a constant that the device keeps between batches.
type Param struct {
	Name string
	Data []byte
}

// Tensor is an input or output of a plan.
type Tensor struct {
	Value
	Layer int // the layer after which an output is complete; −1 for inputs
}

// Step is one launch. Params is the kernel's struct; its first Addresses words are refs of buffers.
type Step struct {
	Kernel      string
	Grid, Block cuda.Dim
	Shared      uint32
	Params      []byte
	Addresses   int
}

// Layer is one node with all nodes fused into it.
type Layer struct {
	Name, Op string
	Steps    []Step
	Params   []int // the parameters it needs, by index in Plan.Params
	FLOP     int64 // multiplications and additions of convolutions and products; 0 for others
	Bytes    int64 // bytes read and written at least once
}

// Plan is a compiled graph for one batch size.
type Plan struct {
	Batch           int
	Precision       Precision
	Layers          []Layer
	Buffers         []Buffer
	Params          []Param
	Inputs, Outputs []Tensor
	ActivationBytes int64
}

// A ref is an offset in a buffer: (buffer + 1) << refShift | offset. Zero refers to nothing.
const refShift = 40

func makeRef(buffer int, offset int64) uint64 { return uint64(buffer+1)<<refShift | uint64(offset) }

// Bind replaces the refs of a launch by addresses; base has the address of each buffer. params must hold a copy of
// s.Params.
func (s *Step) Bind(params []byte, base []cuda.Address) {
	for i := range s.Addresses {
		r := wire.LittleEndian.Uint64(s.Params[8*i:])
		if r != 0 {
			r = uint64(base[r>>refShift-1]) + r&(1<<refShift-1)
		}
		wire.LittleEndian.PutUint64(params[8*i:], r)
	}
}

// Name makes address word i of the launch refer to the beginning of a buffer.
func (s *Step) Name(i, buffer int) { wire.LittleEndian.PutUint64(s.Params[8*i:], makeRef(buffer, 0)) }

// Shape returns a key that is equal for steps that differ only in their addresses.
func (s *Step) Shape() string {
	key := []byte(s.Kernel)
	for i := range s.Addresses {
		// A launch without an optional operand is another computation, but the location of operands makes no
		// difference.
		key = append(key, byte(min(wire.LittleEndian.Uint64(s.Params[8*i:]), 1)))
	}
	return string(append(key, s.Params[8*s.Addresses:]...))
}

// Buffers returns the buffers that the launch refers to, once per reference.
func (s *Step) Buffers() (all []int) {
	s.eachBuffer(func(b int) { all = append(all, b) })
	return all
}

// eachBuffer calls f for each buffer that the launch refers to.
func (s *Step) eachBuffer(f func(buffer int)) {
	for i := range s.Addresses {
		if r := wire.LittleEndian.Uint64(s.Params[8*i:]); r != 0 {
			f(int(r>>refShift - 1))
		}
	}
}

// FLOP returns the sum over layers.
func (p *Plan) FLOP() (n int64) {
	for i := range p.Layers {
		n += p.Layers[i].FLOP
	}
	return n
}

// ParamBytes returns the bytes of all parameters.
func (p *Plan) ParamBytes() (n int64) {
	for i := range p.Params {
		n += int64(len(p.Params[i].Data))
	}
	return n
}
