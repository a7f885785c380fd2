//go:build cgo

package gpu

import (
	"fmt"

	ort "github.com/yalue/onnxruntime_go"

	loader "downbeat.dev/backend/ort"

	"downbeat.dev/backend/onnx"
)

// reference is a graph on ONNX Runtime's CPU provider.
type reference struct {
	session *ort.DynamicAdvancedSession
	model   *onnx.Model
}

// openReference loads ONNX Runtime from library ("" for the usual places) and the graph into it.
func openReference(library string, m *onnx.Model) (*reference, error) {
	if _, err := loader.Open(library); err != nil {
		return nil, err
	}

	var in, out []string
	for _, v := range m.Graph.FeedInputs() {
		in = append(in, v.Name)
	}
	for _, v := range m.Graph.Outputs {
		out = append(out, v.Name)
	}

	s, err := ort.NewDynamicAdvancedSessionWithONNXData(m.Marshal(), in, out, nil)
	if err != nil {
		return nil, fmt.Errorf("open reference: %w", err)
	}
	return &reference{session: s, model: m}, nil
}

var referenceTypes = map[onnx.DataType]ort.TensorElementDataType{
	onnx.Float: ort.TensorElementDataTypeFloat, onnx.Int64: ort.TensorElementDataTypeInt64, onnx.Uint8: ort.TensorElementDataTypeUint8,
	onnx.Int32: ort.TensorElementDataTypeInt32, onnx.Bool: ort.TensorElementDataTypeBool,
}

// runReference runs whole tensors of a batch and returns the outputs as numbers.
func (r *reference) runReference(batch int, inputs [][]byte) ([][]float64, error) {
	in := make([]ort.Value, len(inputs))
	out := make([]ort.Value, len(r.model.Graph.Outputs))

	// The library makes the outputs, and both are its memory.
	defer func() {
		for _, v := range append(in, out...) {
			if v != nil {
				_ = v.Destroy()
			}
		}
	}()

	for i, v := range r.model.Graph.FeedInputs() {
		var shape ort.Shape
		for k, d := range v.Dims {
			if k == 0 && d.Size < 1 {
				d.Size = int64(batch) // the only open dimension
			}
			shape = append(shape, d.Size)
		}
		t, err := ort.NewCustomDataTensor(shape, inputs[i], referenceTypes[v.Type])
		if err != nil {
			return nil, fmt.Errorf("reference input %q: %w", v.Name, err)
		}
		in[i] = t
	}

	if err := r.session.Run(in, out); err != nil {
		return nil, fmt.Errorf("run reference: %w", err)
	}

	// Wide numbers hold every value of the types that graphs return.
	var values [][]float64
	for i, v := range out {
		switch t := v.(type) {
		case *ort.Tensor[float32]:
			values = append(values, widenNumbers(t.GetData()))
		case *ort.Tensor[int64]:
			values = append(values, widenNumbers(t.GetData()))
		default:
			return nil, fmt.Errorf("reference output %d is %T", i, v)
		}
	}
	return values, nil
}

func (r *reference) closeReference() error { return r.session.Destroy() }
