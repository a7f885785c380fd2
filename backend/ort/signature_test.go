//go:build cgo

package ort

import (
	"testing"

	onnx "github.com/yalue/onnxruntime_go"

	"downbeat.dev/core/model"
)

// TestElementTypesAreONNXs: ONNX Runtime's numbers equal those of ONNX's enumeration, for every datatype.
func TestElementTypesAreONNXs(t *testing.T) {
	want := map[model.Datatype]onnx.TensorElementDataType{
		model.Bool: onnx.TensorElementDataTypeBool, model.Uint8: onnx.TensorElementDataTypeUint8,
		model.Int8: onnx.TensorElementDataTypeInt8, model.Uint16: onnx.TensorElementDataTypeUint16,
		model.Int16: onnx.TensorElementDataTypeInt16, model.Uint32: onnx.TensorElementDataTypeUint32,
		model.Int32: onnx.TensorElementDataTypeInt32, model.Uint64: onnx.TensorElementDataTypeUint64,
		model.Int64: onnx.TensorElementDataTypeInt64, model.FP16: onnx.TensorElementDataTypeFloat16,
		model.BF16: onnx.TensorElementDataTypeBFloat16, model.FP32: onnx.TensorElementDataTypeFloat,
		model.FP64: onnx.TensorElementDataTypeDouble, model.Bytes: onnx.TensorElementDataTypeString,
	}
	for _, d := range model.Datatypes() {
		if got := elementType(d); got != want[d] || datatypeName(got) != string(d) {
			t.Errorf("%s: %v, named %s, want %v", d, got, datatypeName(got), want[d])
		}
	}
}
