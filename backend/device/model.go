package device

import (
	"cmp"
	"fmt"
	"slices"

	"downbeat.dev/core/model"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
)

// Align is where tensors may begin within a slot: a cache line, and what vector units want.
const Align = 64

// Tensor is one input or output of a model and where its rows lie.
type Tensor struct {
	model.Tensor         // as clients see it, without the batch dimension
	Graph        []int64 // the shape that the graph has, without the batch dimension
	Bytes        int     // of one row; 0: BYTES, whose size varies
	Offset       int     // of this tensor within a row's payload
	base         int     // of row 0 within a slot
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
	// Samples are rows to warm up and to measure with: the repository's, or for a model with BYTES inputs the
	// guess that the first executor to load it could run. Empty: zeros and random numbers do.
	Samples []repo.Sample
	Profile *profile.Profile // ℓ(b) on this host; nil until measured
	Source  *repo.Model      // where it was read
	bytes   int              // of a slot
	inLeast int              // the least payload of a row worth reading, if it varies: one without elements has none
}

// NewModel lays out a model of the repository. batchMax lowers the model's own limit, if it is above
// 0, and slotBytes lowers it further so that a slot of the model is not larger.
func NewModel(m *repo.Model, batchMax, slotBytes int) (*Model, error) {
	d := &Model{Name: m.Name, Version: m.Version, Batched: m.Batched, BatchMax: m.BatchMax, Samples: m.Samples, Source: m}
	if batchMax > 0 {
		d.BatchMax = min(d.BatchMax, batchMax)
	}

	in, err := model.NewLayout(m.Inputs)
	if err != nil {
		return nil, fmt.Errorf("model %s version %s: input %w", m.Name, m.Version, err)
	}
	out, err := model.NewLayout(m.Outputs)
	if err != nil {
		return nil, fmt.Errorf("model %s version %s: output %w", m.Name, m.Version, err)
	}
	d.Inputs, d.InBytes = placeTensors(m.Inputs, in, m.GraphInput), in.Bytes
	d.Outputs, d.OutBytes = placeTensors(m.Outputs, out, m.GraphOutput), out.Bytes

	// A row of varying size lies in one packed tensor: slots have a fixed place for each row.
	if in.Varies || out.Varies {
		d.Varies, d.InParts, d.OutParts = true, d.Inputs, d.Outputs
		if slices.ContainsFunc(m.Inputs, func(t model.Tensor) bool { return !t.IsEmpty() }) {
			d.inLeast = 1
		}
		d.Inputs, d.InBytes = packRow(in.Bytes + rowRoom(in, m.BytesMax))
		d.Outputs, d.OutBytes = packRow(out.Bytes + rowRoom(out, m.BytesMax))
	}

	// The first guess is from the payload alone; alignment may take some rows more.
	for d.BatchMax > 1 && d.layoutSlots() > slotBytes {
		d.BatchMax = max(1, min(d.BatchMax-1, slotBytes/(d.InBytes+d.OutBytes)))
	}
	if d.layoutSlots() > slotBytes {
		return nil, fmt.Errorf("model %s version %s: one row takes %d bytes, the limit is %d", m.Name, m.Version, d.bytes, slotBytes)
	}
	return d, nil
}

// Info describes d to frontends: the repository's description with the batch limit of this backend.
func (d *Model) Info() model.Info {
	i := d.Source.Info()
	i.BatchMax = uint32(d.BatchMax)

	// Frontends must know how large a payload may be: its size does not follow from the shapes.
	if d.Varies {
		i.InputMax = uint32(d.InBytes)
	}
	return i
}

// rowRoom is what a row needs for the elements of BYTES tensors, and their lengths.
func rowRoom(l model.Layout, bytesMax int) int {
	if !l.Varies {
		return 0
	}
	return cmp.Or(bytesMax, repo.DefaultBytesMax)
}

// placeTensors adds to what clients see of tensors where they lie in a payload, and the graph's shapes.
func placeTensors(all []model.Tensor, l model.Layout, graph func(int) []int64) []Tensor {
	var out []Tensor
	for i, t := range all {
		out = append(out, Tensor{Tensor: t, Graph: graph(i), Bytes: t.RowBytes(), Offset: l.Offsets[i]})
	}
	return out
}

// layoutSlots places the tensors for BatchMax rows and returns the slot's size.
func (d *Model) layoutSlots() int {
	at := 0
	for _, list := range [][]Tensor{d.Inputs, d.Outputs} {
		for k := range list {
			// All rows of a tensor lie side by side, so that a batch needs no copy to be whole.
			list[k].base = at
			at = (at + list[k].Bytes*d.BatchMax + Align - 1) &^ (Align - 1)
		}
	}
	d.bytes = at
	return at
}

// SlotBytes returns the size of a slot that holds a batch of any of the models.
func SlotBytes(models []*Model) int {
	// A slot without models still has an address.
	size := Align
	for _, m := range models {
		size = max(size, m.bytes)
	}
	return size
}

// Bytes returns how large a slot must be that holds a batch of d.
func (d *Model) Bytes() int { return d.bytes }
