package device

import (
	"fmt"
	"os"
	"unsafe"
)

// Slot is the memory of one batch.
type Slot struct {
	Index  int // among the slots of its GPU
	memory []byte
}

// PagedBytes returns how much to allocate so that Pages leaves at least size bytes.
func PagedBytes(size int) int {
	page := os.Getpagesize()
	return (size+page-1)/page*page + page
}

// Pages returns the whole pages within memory. A device pins each page once, so slots must not share pages.
func Pages(memory []byte) []byte {
	page := os.Getpagesize()
	from := PagesBegin(memory)
	n := (len(memory) - from) / page * page
	return memory[from : from+n : from+n]
}

// PagesBegin returns the number of bytes of memory before its first whole page.
func PagesBegin(memory []byte) int {
	// Memory may begin within a page; only whole pages can be pinned.
	page := uintptr(os.Getpagesize())
	start := uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	return int((page - start%page) % page)
}

// NewSlot returns a slot over memory, which must stay in place and be aligned to Align: memory of the data plane or
// pinned memory, never garbage-collected memory if an executor passes it to C.
func NewSlot(index int, memory []byte) *Slot { return &Slot{Index: index, memory: memory} }

// Memory returns the slot's whole memory, for an executor that must register it with a device.
func (s *Slot) Memory() []byte { return s.memory }

// Fits checks that a batch of m fits in the slot.
func (s *Slot) Fits(m *Model) error {
	if m.bytes > len(s.memory) {
		return fmt.Errorf("slot %d has %d bytes, model %s needs %d", s.Index, len(s.memory), m.Name, m.bytes)
	}
	return nil
}

// Input returns the first n rows of m's k-th input.
func (s *Slot) Input(m *Model, k, n int) []byte { return s.rowBytes(&m.Inputs[k], 0, n) }

// Output returns the first n rows of m's k-th output.
func (s *Slot) Output(m *Model, k, n int) []byte { return s.rowBytes(&m.Outputs[k], 0, n) }

// InputRow returns row i of m's k-th input.
func (s *Slot) InputRow(m *Model, k, i int) []byte { return s.rowBytes(&m.Inputs[k], i, i+1) }

// OutputRow returns row i of m's k-th output.
func (s *Slot) OutputRow(m *Model, k, i int) []byte { return s.rowBytes(&m.Outputs[k], i, i+1) }

// OutputPlace returns OutputRow's range of bytes within Memory.
func (s *Slot) OutputPlace(m *Model, k, i int) (from, to int) { return m.Outputs[k].Span(i, i+1) }

func (s *Slot) rowBytes(t *Tensor, from, to int) []byte {
	lo, hi := t.Span(from, to)

	// The capacity ends with the rows, so that an append cannot write into the following ones.
	return s.memory[lo:hi:hi]
}

// CopyRow copies the inputs of row i of from to row j of s; both may be the same slot.
func (s *Slot) CopyRow(m *Model, j int, from *Slot, i int) {
	for k := range m.Inputs {
		copy(s.InputRow(m, k, j), from.InputRow(m, k, i))
	}
}
