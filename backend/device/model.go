package device

import (
	"fmt"

	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
	"downbeat.dev/core/wire"
)

// Align is where tensors may begin within a slot: a cache line, and what vector units want.
const Align = 64

// tensorBytesMax bounds one row of one tensor; the repository's limit on elements is close to it.
const tensorBytesMax = 1 << 30

// Tensor is one input or output of a model and where its rows lie.
type Tensor struct {
	wire.Tensor         // as clients see it, without the batch dimension
	Graph       []int64 // the shape that the graph has, without the batch dimension
	Bytes       int     // of one row; 0: BYTES, whose size varies
	Offset      int     // of this tensor within a row's payload
	base        int     // of row 0 within a slot
}

// Span returns where rows from…to−1 lie within a slot: bytes lo to hi.
func (t *Tensor) Span(from, to int) (lo, hi int) { return t.base + from*t.Bytes, t.base + to*t.Bytes }

// Model is a model as backends know it.
type Model struct {
	Name     string
	Version  string
	Batched  bool // the graph's tensors have a leading batch dimension; if not, BatchMax is 1
	BatchMax int
	Inputs   []Tensor
	Outputs  []Tensor
	InBytes  int // payload of a row: all inputs; the most if it varies
	OutBytes int // payload of a row: all outputs; the most if it varies
	// Varies says that a tensor is BYTES. Inputs and Outputs then hold one packed tensor each, of what
	// InParts and OutParts name; see Packed.
	Varies            bool
	InParts, OutParts []Tensor
	Profile           *profile.Profile // ℓ(b) on this host; nil until measured
	Source            *repo.Model      // where it was read
	bytes             int              // of a slot
}

var elementBytes = map[string]int{
	"BYTES": 0, "BOOL": 1, "UINT8": 1, "INT8": 1, "UINT16": 2, "INT16": 2, "FP16": 2, "BF16": 2,
	"UINT32": 4, "INT32": 4, "FP32": 4, "UINT64": 8, "INT64": 8, "FP64": 8,
}

// NewModel lays out a model of the repository. batchMax lowers the model's own limit, if it is above
// 0, and slotBytes lowers it further so that a slot of the model is not larger.
func NewModel(m *repo.Model, batchMax, slotBytes int) (*Model, error) {
	d := &Model{Name: m.Name, Version: m.Version, Batched: m.Batched, BatchMax: m.BatchMax, Source: m}
	if batchMax > 0 {
		d.BatchMax = min(d.BatchMax, batchMax)
	}
	var err error
	if d.Inputs, d.InBytes, err = tensors(m.Inputs, m.GraphInput); err != nil {
		return nil, fmt.Errorf("model %s version %s: input %w", m.Name, m.Version, err)
	}
	if d.Outputs, d.OutBytes, err = tensors(m.Outputs, m.GraphOutput); err != nil {
		return nil, fmt.Errorf("model %s version %s: output %w", m.Name, m.Version, err)
	}
	if varies(m.Inputs) || varies(m.Outputs) {
		d.Varies, d.InParts, d.OutParts = true, d.Inputs, d.Outputs
		d.Inputs, d.InBytes = pack(d.InBytes)
		d.Outputs, d.OutBytes = pack(d.OutBytes)
	}
	for d.BatchMax > 1 && d.layout() > slotBytes {
		d.BatchMax = max(1, min(d.BatchMax-1, slotBytes/(d.InBytes+d.OutBytes)))
	}
	if d.layout() > slotBytes {
		return nil, fmt.Errorf("model %s version %s: one row takes %d bytes, the limit is %d", m.Name, m.Version, d.bytes, slotBytes)
	}
	return d, nil
}

// Info describes d to frontends: the repository's description with the batch limit of this backend.
func (d *Model) Info() wire.ModelInfo {
	i := d.Source.Info()
	i.BatchMax = uint32(d.BatchMax)
	return i
}

func tensors(in []wire.Tensor, graph func(int) []int64) ([]Tensor, int, error) {
	var out []Tensor
	total := 0
	for i, t := range in {
		size, ok := elementBytes[t.Datatype]
		if !ok {
			return nil, 0, fmt.Errorf("%q: datatype %s: want one of the protocol's, such as FP32, INT64 or BYTES", t.Name, t.Datatype)
		}
		for _, n := range t.Shape {
			if n < 1 || n > int64(tensorBytesMax/max(size, 1)) {
				return nil, 0, fmt.Errorf("%q: shape %v: want dimensions above 0 and at most %d bytes", t.Name, t.Shape, tensorBytesMax)
			}
			size *= int(n)
		}
		out = append(out, Tensor{Tensor: t, Graph: graph(i), Bytes: size, Offset: total})
		total += size
	}
	return out, total, nil
}

// layout places the tensors for BatchMax rows and returns the slot's size.
func (d *Model) layout() int {
	at := 0
	for _, list := range [][]Tensor{d.Inputs, d.Outputs} {
		for k := range list {
			list[k].base = at
			at = (at + list[k].Bytes*d.BatchMax + Align - 1) &^ (Align - 1)
		}
	}
	d.bytes = at
	return at
}

// SlotBytes returns the size of a slot that holds a batch of any of the models.
func SlotBytes(models []*Model) int {
	size := Align
	for _, m := range models {
		size = max(size, m.bytes)
	}
	return size
}
