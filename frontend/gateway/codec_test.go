package gateway

import (
	"errors"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
)

// rawMessage and rawCodec send bytes as they are.
type rawMessage []byte

type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(rawMessage))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	return proto.Unmarshal(data.Materialize(), v.(proto.Message))
}

// FuzzInferMessage compares the lean decoder with the generated one: what the generated one accepts, the lean one
// accepts too, with the same names, shapes and raw tensors; no input makes it panic.
func FuzzInferMessage(f *testing.F) {
	add := func(r *oip.ModelInferRequest) {
		text, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	add(sumRequest(floats(1, 2), floats(3, 4)))
	add(&oip.ModelInferRequest{ModelName: "m", Parameters: map[string]*oip.InferParameter{"timeout": whole(5)}, Inputs: []*oip.ModelInferRequest_InferInputTensor{
		{Name: "x", Datatype: "FP64", Shape: []int64{-1, 1 << 40}, Contents: &oip.InferTensorContents{Fp64Contents: []float64{1, 2}}},
		{Name: "s", Datatype: "BYTES", Contents: &oip.InferTensorContents{BytesContents: [][]byte{{1}, {}}}},
		{Name: "i", Datatype: "INT8", Contents: &oip.InferTensorContents{IntContents: []int32{-1, 127}}}},
		Outputs: []*oip.ModelInferRequest_InferRequestedOutputTensor{{Name: "y", Parameters: map[string]*oip.InferParameter{"classification": whole(3)}}}})
	f.Add([]byte{0x2a, 0x02, 0x1a, 0x00})
	f.Fuzz(func(t *testing.T, text []byte) {
		m, want := new(inferMessage), new(oip.ModelInferRequest)
		err := m.decodeMessage(text)
		if proto.Unmarshal(text, want) != nil {
			return
		}
		if errors.Is(err, errLimit) {
			return
		}
		if err != nil {
			t.Fatalf("%x: %v", text, err)
		}
		_ = m.resolveContents()
		if m.name != want.ModelName || m.version != want.ModelVersion || m.id != want.Id || len(m.inputs) != len(want.Inputs) || len(m.outputs) != len(want.Outputs) || len(m.raws) != len(want.RawInputContents) {
			t.Fatalf("%x: %+v, want %v", text, m, want)
		}
		for i, in := range want.Inputs {
			if m.inputs[i].name != in.Name || string(m.inputs[i].datatype) != in.Datatype || len(m.inputs[i].shape) != len(in.Shape) {
				t.Fatalf("%x: input %d: %+v, want %v", text, i, m.inputs[i], in)
			}
		}
		for i, raw := range want.RawInputContents {
			if string(m.raws[i]) != string(raw) {
				t.Fatalf("%x: raw %d", text, i)
			}
		}
	})
}

// FuzzRESTBody passes any body, with any header length, to the REST parser and the checks after it.
func FuzzRESTBody(f *testing.F) {
	f.Add([]byte(sumBody), 0)
	f.Add([]byte(`{"inputs":[{"name":"a","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}]}12345678`), 94)
	f.Add([]byte(`{"parameters":{"timeout":5,"binary_data_output":true},"inputs":[{"data":["x"],"datatype":"BYTES","shape":[1]}],"outputs":[{"name":"sum","parameters":{"classification":1}}]}`), 0)
	models := make([]*frontend.Model, len(testModels))
	for i, info := range testModels {
		models[i] = &frontend.Model{ModelInfo: info}
	}
	f.Fuzz(func(t *testing.T, body []byte, head int) {
		if head <= 0 || head > len(body) {
			head = len(body)
		}
		for _, m := range models {
			in := &inference{model: m}
			if in.parseRequest(body[:head], body[head:]) != nil || in.arrangeInputs() != nil || in.chooseOutputs() != nil {
				continue
			}
			if in.rows < 1 || in.rows > rowsMax || len(in.inputs) != len(m.Inputs) || len(in.outputs) == 0 {
				t.Fatalf("%q: taken as %+v", body, in)
			}
			for k := range in.inputs {
				at := 0
				for range in.rows {
					at += in.rowBytes(k, at)
				}
				if at != len(in.inputs[k].raw) {
					t.Fatalf("%q: rows of input %d take %d bytes of %d", body, k, at, len(in.inputs[k].raw))
				}
			}
		}
	})
}
