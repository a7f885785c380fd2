package gateway

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
	"downbeat.dev/internal/memcost"
)

// costFixed is the memory that a message may take besides memcost.PerByte for each of its bytes: tensorsMax tensors
// of two bytes each, with their arrays as they grow. A compressed body counts decompressed (decision 0055).
const costFixed = 128 << 10

// costModels are the models against which messages are checked.
func costModels() []*frontend.Model {
	models := make([]*frontend.Model, len(testModels))
	for i, info := range testModels {
		models[i] = &frontend.Model{ModelInfo: info}
	}
	return models
}

// FuzzInferMessageCost: no gRPC message takes more memory than its bytes allow.
func FuzzInferMessageCost(f *testing.F) {
	add := func(tensors ...*oip.ModelInferRequest_InferInputTensor) {
		text, err := proto.Marshal(&oip.ModelInferRequest{ModelName: "sum", Inputs: tensors})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	const many = 1 << 14
	for _, c := range []*oip.InferTensorContents{
		{BytesContents: make([][]byte, many)}, {BoolContents: make([]bool, many)}, {IntContents: make([]int32, many)},
		{UintContents: make([]uint32, many)}, {Int64Contents: make([]int64, many)}, {Fp32Contents: make([]float32, many)}, {Fp64Contents: make([]float64, many)},
	} {
		for _, datatype := range []string{"BYTES", "BOOL", "INT8", "INT32", "INT64", "UINT64", "FP32", "FP64"} {
			add(&oip.ModelInferRequest_InferInputTensor{Name: "a", Datatype: datatype, Shape: []int64{many}, Contents: c})
		}
	}
	f.Add(repeatField(5, nil, tensorsMax))
	f.Add(repeatField(6, nil, tensorsMax))
	f.Add(repeatField(7, nil, tensorsMax))
	f.Add(slices.Concat(repeatField(4, nil, many), repeatField(5, repeatField(4, nil, many), 1)))

	models := costModels()
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, model := range models {
			memcost.Check(t, text, costFixed, func() {
				m := new(inferMessage)
				if m.decodeMessage(text) != nil || m.fault != nil {
					return
				}
				m.model = model
				if m.resolveContents() == nil && m.arrangeInputs() == nil {
					_ = m.chooseOutputs()
				}
			})
		}
	})
}

// FuzzRESTBodyCost: no REST body takes more memory than its bytes allow.
func FuzzRESTBodyCost(f *testing.F) {
	f.Add([]byte(sumBody), 0)
	for _, datatype := range []string{"BYTES", "BOOL", "INT8", "INT64", "FP32", "FP64"} {
		for _, element := range []string{`0,`, `"",`, `[],`, `true,`, `{},`, `"\u0000",`, `1e9,`} {
			data := strings.TrimSuffix(strings.Repeat(element, 1<<13), ",")
			f.Add([]byte(`{"inputs":[{"name":"a","shape":[8192],"datatype":"`+datatype+`","data":[`+data+`]}]}`), 0)
		}
	}
	f.Add([]byte(`{"inputs":[`+strings.TrimSuffix(strings.Repeat("{},", tensorsMax), ",")+`]}`), 0)
	f.Add([]byte(`{"outputs":[`+strings.TrimSuffix(strings.Repeat("{},", 1<<14), ",")+`]}`), 0)
	f.Add([]byte(`{"parameters":{`+strings.TrimSuffix(strings.Repeat(`"a":0,`, 1<<14), ",")+`}}`), 0)
	f.Add([]byte(`{"inputs":[{"shape":[`+strings.TrimSuffix(strings.Repeat(`1,`, 1<<14), ",")+`]}]}`), 0)
	f.Add(bytes.Repeat([]byte("["), 1<<14), 0)
	f.Add([]byte(`{"x":`+strings.Repeat(`{"x":`, 1<<14)), 0)

	models := costModels()
	f.Fuzz(func(t *testing.T, body []byte, head int) {
		if head <= 0 || head > len(body) {
			head = len(body)
		}
		for _, model := range models {
			memcost.Check(t, body, costFixed, func() {
				in := &inference{model: model}
				if in.parseRequest(body[:head], body[head:]) == nil && in.arrangeInputs() == nil {
					_ = in.chooseOutputs()
				}
			})
		}
	})
}

// FuzzGenerateCost: no body of a generate call takes more memory than its bytes allow.
func FuzzGenerateCost(f *testing.F) {
	for _, element := range []string{`0,`, `"",`, `[],`, `true,`, `{},`, `"\u0000",`, `1e9,`} {
		data := strings.TrimSuffix(strings.Repeat(element, 1<<13), ",")
		f.Add([]byte(`{"a":[` + data + `],"parameters":{"b":[` + data + `]},"c":[` + data + `]}`))
	}
	f.Add([]byte(`{` + strings.TrimSuffix(strings.Repeat(`"a":0,`, tensorsMax), ",") + `}`))
	f.Add([]byte(`{"parameters":{` + strings.TrimSuffix(strings.Repeat(`"a":"",`, 1<<13), ",") + `}}`))
	f.Add([]byte(`{"parameters":{` + strings.TrimSuffix(strings.Repeat(`"sequence_id":"0",`, 1<<12), ",") + `}}`))
	f.Add([]byte(strings.Repeat(`{"parameters":`, 1<<13)))

	models := costModels()
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, model := range models {
			memcost.Check(t, body, costFixed, func() {
				in := &inference{model: model}
				if in.parseGenerate(nil, body) == nil {
					_ = in.arrangeInputs()
				}
			})
		}
	})
}

// configCostFixed is the memory that configValuesMax values of two bytes may take, the same as for config.pbtxt's
// fields.
const configCostFixed = 2 << 20

// FuzzConfigurationInJSONCost: no configuration in a call takes more memory than its bytes allow.
func FuzzConfigurationInJSONCost(f *testing.F) {
	f.Add([]byte(`{"input":[{"name":"x","data_type":"TYPE_FP32","dims":["16"]}],"parameters":{"a":{"string_value":"b"}}}`))
	for _, element := range []string{`1,`, `"",`, `true,`, `{},`, `"1",`, `"\u0000",`} {
		list := strings.TrimSuffix(strings.Repeat(element, 1<<13), ",")
		f.Add([]byte(`{"a":[` + list + `]}`))
		f.Add([]byte(`{"input":[{"dims":[` + list + `]}]}`))
	}
	f.Add([]byte(`{` + strings.TrimSuffix(strings.Repeat(`"a":1,`, 1<<13), ",") + `}`))
	f.Add([]byte(`{"parameters":{` + strings.TrimSuffix(strings.Repeat(`"":{},`, 1<<13), ",") + `}}`))
	f.Add([]byte(strings.Repeat(`{"a":`, 1<<13)))
	f.Add([]byte(`{"a":` + strings.Repeat(`[`, 1<<13)))
	f.Add([]byte(`{"a":"` + strings.Repeat("\xff", 1<<13) + `"}`))

	f.Fuzz(func(t *testing.T, text []byte) {
		memcost.Check(t, text, configCostFixed, func() { _, _ = configText(text) })
	})
}
