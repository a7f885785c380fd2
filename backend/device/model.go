package device

import (
	"cmp"
	"fmt"
	"slices"

	"downbeat.dev/core/model"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
)

// Align is the alignment of tensors within a slot: a cache line, which also suits vector units.
const Align = 64

// Tensor is one input or output of a model and the position of its rows.
type Tensor struct {
	model.Tensor         // as clients see it, without the batch dimension
	Graph        []int64 // the graph's shape, without the batch dimension
	Bytes        int     // of one row; 0: BYTES, whose size varies
	Offset       int     // of this tensor within a row's payload
	base         int     // of row 0 within a slot
}

// Span returns the position of rows from…to−1 within a slot: bytes lo to hi.
func (t *Tensor) Span(from, to int) (lo, hi int) { return t.base + from*t.Bytes, t.base + to*t.Bytes }

// Model is a backend's description of a model.
type Model struct {
	Name     string
	Version  string
	Batched  bool // the graph's tensors have a leading batch dimension; if not, BatchMax is 1
	BatchMax int
	Inputs   []Tensor
	Outputs  []Tensor
	InBytes  int // payload of a row: all inputs; the maximum if it varies
	OutBytes int // payload of a row: all outputs; the maximum if it varies
	// Varies means that a tensor is BYTES. Inputs and Outputs then hold one packed tensor each, for the tensors in
	// InParts and OutParts; see Packed.
	Varies            bool
	InParts, OutParts []Tensor
	// Samples are rows for warm-up and measurement: the repository's, or, for a model with BYTES inputs, the guess
	// that the first executor could run. Empty: use zeros and random numbers.
	Samples []repo.Sample
	Profile *profile.Profile // ℓ(b) on this host; nil until measured
	Source  *repo.Model      // the repository model it was read from
	bytes   int              // of a slot
	inLeast int              // if it varies: the least payload of a valid row; a row without elements has none
}

// NewModel computes the layout of a repository model. batchMax, if above 0, lowers the model's own limit, and
// slotBytes lowers it further so that the model's slot is not larger.
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

	// A row of varying size is one packed tensor: slots have a fixed place for each row.
	if in.Varies || out.Varies {
		d.Varies, d.InParts, d.OutParts = true, d.Inputs, d.Outputs
		if slices.ContainsFunc(m.Inputs, func(t model.Tensor) bool { return !t.IsEmpty() }) {
			d.inLeast = 1
		}
		d.Inputs, d.InBytes = packRow(in.Bytes + rowRoom(in, m.BytesMax))
		d.Outputs, d.OutBytes = packRow(out.Bytes + rowRoom(out, m.BytesMax))
	}

	// The first estimate uses only the payload; alignment may cost some more rows.
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

	// Frontends need the maximum payload: its size does not follow from the shapes.
	if d.Varies {
		i.InputMax = uint32(d.InBytes)
	}
	return i
}

// rowRoom returns the room that a row needs for the elements of BYTES tensors, and their lengths.
func rowRoom(l model.Layout, bytesMax int) int {
	if !l.Varies {
		return 0
	}
	return cmp.Or(bytesMax, repo.DefaultBytesMax)
}

// placeTensors adds the position in a payload and the graph's shape to the clients' tensors.
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
			// All rows of a tensor are contiguous, so a batch needs no copy to be complete.
			list[k].base = at
			at = (at + list[k].Bytes*d.BatchMax + Align - 1) &^ (Align - 1)
		}
	}
	d.bytes = at
	return at
}

// SlotBytes returns the size of a slot for a batch of any of the models.
func SlotBytes(models []*Model) int {
	// A slot without models still has an address.
	size := Align
	for _, m := range models {
		size = max(size, m.bytes)
	}
	return size
}

// Bytes returns the size of a slot for a batch of d.
func (d *Model) Bytes() int { return d.bytes }
