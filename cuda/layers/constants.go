package layers

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"unsafe"

	"downbeat.dev/cuda"
	"downbeat.dev/cuda/kernels"
)

// Constants: nodes that are computed at compile time, and the parameters that a plan's launches read.

// dependsOnConstants reports whether a node depends only on constants; a Shape does, because its input's shape is
// known.
func (c *compiler) dependsOnConstants(n *Node) bool {
	for _, in := range n.Inputs {
		if in != "" && !c.values[in].isConstant() {
			return false
		}
	}
	return true
}

// foldBytesMax bounds the size of a computed constant: a file of a few bytes must not take all memory.
const foldBytesMax = 256 << 20

// foldNode computes a node of constants with the Go kernels.
func (c *compiler) foldNode(n *Node) error {
	// Constants are computed in float32, whatever the plan's precision.
	f := &compiler{g: c.g, batch: c.batch, plan: &Plan{}, values: map[string]*tensor{}, users: map[string][]int{},
		ends: map[string]bool{}, params: map[string]int{}, node: n, layer: &Layer{}}

	for _, in := range n.Inputs {
		if in != "" {
			t := *c.values[in]
			// In the folded node's plan the value has no buffer yet.
			t.buffer, t.other, t.stored = -1, nil, t.Type
			f.values[in] = &t
		}
	}

	// The node is compiled alone and run on the reference kernels, so that folding and running agree.
	if err := operators[n.Op].lower(f, n); err != nil {
		return err
	}
	mem, base, err := f.fillBuffers()
	if err != nil {
		return err
	}

	reference := kernels.Reference()
	for i := range f.layer.Steps {
		s := &f.layer.Steps[i]
		p := slices.Clone(s.Params)
		s.Bind(p, base)
		reference[s.Kernel](mem, cuda.Launch{Kernel: s.Kernel, Params: p})
	}

	for _, out := range n.Outputs {
		t := f.values[out]
		if t == nil {
			continue
		}
		k, err := c.newTensor(out, t.Type, t.Dims)
		if err != nil {
			return err
		}
		k.stored = k.Type

		// A view of a constant keeps its bytes; otherwise the kernels wrote them.
		if k.data = t.data; k.data == nil {
			k.data = slices.Clone(mem.Bytes(base[t.buffer], t.byteSize()))
		}
		if t.isConstant() {
			k.source = t.source
		}
	}
	return nil
}

// fillBuffers allocates every buffer of a folded node.
func (c *compiler) fillBuffers() (*cuda.DeviceMemory, []cuda.Address, error) {
	mem := cuda.NewDeviceMemory(foldBytesMax)
	base := make([]cuda.Address, len(c.plan.Buffers))
	for i, b := range c.plan.Buffers {
		var err error
		if base[i], err = mem.Alloc(b.Bytes); err != nil {
			return nil, nil, fmt.Errorf("constant of %d bytes: %w", b.Bytes, err)
		}

		if b.Kind == Parameter {
			copy(mem.Bytes(base[i], b.Bytes), c.plan.Params[b.Index].Data)
		}
	}
	return mem, base, nil
}

// refOf returns the ref of a tensor and makes a constant a parameter; 0 for nil.
func (c *compiler) refOf(t *tensor) uint64 {
	if t == nil {
		return 0
	}

	// Only constants that a launch reads become parameters. Folded constants never reach the device.
	if t.buffer < 0 {
		t.stored = c.precision.storedType(t.Type)
		if t.stored == t.Type {
			t.buffer = c.addParam(t.source, t.data)
		} else {
			t.buffer = c.addHalfParam(t.source, func() []float32 { return floatsOf(t.data) })
		}
	}

	// A layer lists its parameters, so that it can run with only those on the device.
	b := &c.plan.Buffers[t.buffer]
	if b.Kind == Parameter && !slices.Contains(c.layer.Params, b.Index) {
		c.layer.Params = append(c.layer.Params, b.Index)
	}

	c.layer.Bytes += t.byteSize()
	return makeRef(t.buffer, 0)
}

// addParam makes bytes a parameter. Bytes that are not an unchanged initialiser are named by their contents, so that
// plans for other batches agree (L3).
func (c *compiler) addParam(source string, data []byte) int {
	name := source
	if name == "" {
		sum := sha256.Sum256(data)
		name = "derived/" + hex.EncodeToString(sum[:12])
	}
	if b, ok := c.params[name]; ok {
		return b
	}

	c.plan.Params = append(c.plan.Params, Param{Name: name, Data: data})
	b := c.addBuffer(Buffer{Kind: Parameter, Bytes: int64(len(data)), Index: len(c.plan.Params) - 1})
	c.params[name] = b
	return b
}

// addHalfParam makes floats a parameter in the plan's precision. If they have a name, they are computed once for all
// batches.
func (c *compiler) addHalfParam(source string, numbers func() []float32) int {
	if source == "" {
		return c.addParam("", bytesOf(kernels.Halves(c.precision.Real(), numbers())))
	}

	name := source + "/" + c.precision.String()
	if b, ok := c.params[name]; ok {
		return b
	}

	if c.g.derived[name] == nil {
		c.g.derived[name] = bytesOf(kernels.Halves(c.precision.Real(), numbers()))
	}
	return c.addParam(name, c.g.derived[name])
}

// paramFloats makes computed floats a parameter and returns its ref.
func (c *compiler) paramFloats(v []float32) uint64 {
	return c.refOf(&tensor{Value: Value{Type: Float32, Dims: []int{len(v)}}, data: bytesOf(v), buffer: -1})
}

// addDerived makes numbers that were computed from constants a parameter with dims, and returns its ref. If every
// constant is an initialiser, they are computed once for all batches.
func (c *compiler) addDerived(how string, dims []int, numbers func() []float32, from ...*tensor) uint64 {
	name := how

	for _, t := range from {
		if t != nil && t.source == "" {
			return c.paramFloats(numbers())
		}
		if t != nil {
			name += "/" + t.source
		}
	}

	// A name made of the computation lets all batch sizes share one copy.
	t := &tensor{Value: Value{Type: Float32, Dims: dims}, buffer: -1, source: name, stored: Float32}
	if c.precision != FP32 {
		t.stored, t.buffer = c.precision.storedType(Float32), c.addHalfParam(name, numbers)
		return c.refOf(t)
	}

	if c.g.derived[name] == nil {
		c.g.derived[name] = bytesOf(numbers())
	}
	t.data = c.g.derived[name]
	return c.refOf(t)
}

// floatsOf views little-endian bytes as floats.
func floatsOf(b []byte) []float32 { return viewOf[float32](b) }

func intsOf(b []byte) []int64 { return viewOf[int64](b) }

func viewOf[T any](b []byte) []T {
	var t T
	size := int(unsafe.Sizeof(t))
	n := len(b) / size
	if n == 0 {
		return nil
	}
	if uintptr(unsafe.Pointer(unsafe.SliceData(b)))%unsafe.Alignof(t) != 0 { // bytes within a file may be unaligned
		v := make([]T, n)
		copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), n*size), b)
		return v
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

func bytesOf[T any](v []T) []byte {
	if len(v) == 0 {
		return []byte{}
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(v[0])))
}
