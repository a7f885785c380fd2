package layers

import (
	"fmt"

	"downbeat.dev/cuda/kernels"
)

// castTypes maps ONNX's numbers to element types.
var castTypes = map[int]DataType{1: Float32, 2: Uint8, 6: Int32, 7: Int64, 9: Bool}

var kernelTypes = map[DataType]int32{Float32: kernels.Float32, Int32: kernels.Int32, Int64: kernels.Int64, Bool: kernels.Bool, Uint8: kernels.Uint8,
	float16: kernels.Float16, bfloat16: kernels.BFloat16}

func lowerCast(c *compiler, n *Node) error {
	x := c.plainInput(0)
	to, ok := castTypes[c.intAttr("to", 0)]
	if !ok {
		return fmt.Errorf("to type %d: %w", c.intAttr("to", 0), ErrUnsupported)
	}

	if to == x.Type {
		return c.aliasResult(n.Outputs[0], x, x.Dims)
	}

	y, err := c.makeResult(n.Outputs[0], to, x.Dims)
	if err != nil {
		return err
	}
	return c.convertType(x, y)
}
