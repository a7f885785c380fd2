package layers

import (
	"fmt"

	"downbeat.dev/cuda/kernels"
)

// Precision is the storage format of a plan's real numbers, for both parameters and activations. Sums are always in
// float32, and a plan's inputs and outputs stay float32.
type Precision uint8

// The precisions.
const (
	FP32 Precision = iota
	FP16           // IEEE binary16
	BF16           // bfloat16
)

var precisions = [...]string{"fp32", "fp16", "bf16"}

// String returns the precision's name.
func (p Precision) String() string {
	if int(p) < len(precisions) {
		return precisions[p]
	}
	return fmt.Sprintf("precision %d", uint8(p))
}

// ParsePrecision returns the precision of a name; "" is fp32.
func ParsePrecision(s string) (Precision, error) {
	if s == "" {
		return FP32, nil
	}
	for i, name := range precisions {
		if s == name {
			return Precision(i), nil
		}
	}
	return 0, fmt.Errorf("precision %q: want fp32, fp16 or bf16", s)
}

// Real is the kernels' type of real numbers.
func (p Precision) Real() int32 {
	return [...]int32{kernels.Float32, kernels.Float16, kernels.BFloat16}[p]
}

// storedType returns the element type in which a value of type t is stored.
func (p Precision) storedType(t DataType) DataType {
	if t != Float32 {
		return t
	}
	return [...]DataType{Float32, float16, bfloat16}[p]
}
