package model

import (
	"fmt"
	"math"
)

// PayloadBytesMax bounds what the tensors of fixed size of one row take together: a message's header counts them in
// 32 bits.
const PayloadBytesMax = math.MaxInt32

// Layout says where the inputs of one row, or its outputs, lie in their payload as it travels: one tensor behind the
// other, in the model's order, without a batch dimension.
type Layout struct {
	Offsets []int // of each tensor, counting those before it without the elements of BYTES tensors
	Bytes   int   // of all tensors of fixed size
	Varies  bool  // some tensor is BYTES: a payload is Bytes and the elements of those long
}

// NewLayout lays tensors out. An error names the tensor that Check refuses, or the sum that is too large.
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
