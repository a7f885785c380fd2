package model

import (
	"fmt"
	"math"
)

// PayloadBytesMax bounds the tensors of fixed size of one row together: a message's header counts them in 32 bits.
const PayloadBytesMax = math.MaxInt32

// Layout locates the inputs or outputs of one row in their payload: the tensors lie one after another, in the model's
// order, without a batch dimension.
type Layout struct {
	Offsets []int // of each tensor; BYTES tensors before it count as 0 bytes
	Bytes   int   // of all tensors of fixed size
	Varies  bool  // some tensor is BYTES: the payload is Bytes plus the BYTES elements
}

// NewLayout lays out tensors. The error names the tensor that Check refuses, or the sum that is too large.
func NewLayout(tensors []Tensor) (Layout, error) {
	l := Layout{Offsets: make([]int, len(tensors))}
	for i := range tensors {
		t := &tensors[i]
		if err := t.Check(); err != nil {
			return Layout{}, err
		}

		l.Offsets[i] = l.Bytes
		l.Bytes += t.RowBytes()
		l.Varies = l.Varies || t.Varies()
		if l.Bytes > PayloadBytesMax {
			return Layout{}, fmt.Errorf("%d tensors: want at most %d bytes in all", len(tensors), PayloadBytesMax)
		}
	}
	return l, nil
}
