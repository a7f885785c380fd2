package repo

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

const full = `# a comment
name: "detector"
platform: "onnxruntime_onnx"
max_batch_size: 0x20
input [
  { name: "image" data_type: TYPE_UINT8 format: FORMAT_NONE dims: [ 96, 96, 3 ] },
  { name: 'scale', data_type: TYPE_FP32; dims: 1 reshape { shape: [] } }
]
output <
  name: "scores" data_type: TYPE_FP32
  dims: 6 dims: 6
  label_filename: "lab" "els.txt"
>
instance_group [ { count: 2 kind: KIND_CPU } ]
version_policy: { specific { versions: [1, 3] } }
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 default_queue_policy { timeout_action: REJECT } }
parameters { key: "slo_ms" value: { string_value: "62.5" } }
parameters { key: "note" value: { string_value: "tab\tA\x41\101\u0041" } }
optimization { execution_accelerators { cpu_execution_accelerator : [ { name : "openvino" } ] } }
model_warmup [ { name: "w" batch_size: 4 count: 2
  inputs { key: "scale" value { data_type: TYPE_FP32 dims: 1 random_data: true } }
  inputs { key: "image" value { data_type: TYPE_UINT8 dims: [ 96, 96, 3 ] zero_data: true } } } ]
`

func TestParseConfigReadsWhatTritonWrites(t *testing.T) {
	c, err := ParseConfig("config.pbtxt", []byte(full))
	if err != nil {
		t.Fatal(err)
	}
	if c.Name != "detector" || c.Platform != PlatformONNX || c.BatchMax != 32 || c.SLO != 62500*time.Microsecond {
		t.Errorf("head: %+v", c)
	}
	if len(c.Inputs) != 2 || c.Inputs[0].Name != "image" || c.Inputs[0].Datatype != "UINT8" || !reflect.DeepEqual(c.Inputs[0].Shape, []int64{96, 96, 3}) {
		t.Errorf("inputs: %+v", c.Inputs)
	}
	if c.Inputs[1].Reshape == nil || len(c.Inputs[1].Reshape) != 0 || c.Inputs[0].Reshape != nil {
		t.Errorf("reshape: %+v", c.Inputs)
	}
	if o := c.Outputs[0]; !reflect.DeepEqual(o.Shape, []int64{6, 6}) || o.LabelFilename != "labels.txt" {
		t.Errorf("output: %+v", o)
	}
	if !reflect.DeepEqual(c.Instances, []InstanceGroup{{Kind: "KIND_CPU", Count: 2}}) {
		t.Errorf("instances: %+v", c.Instances)
	}
	if !reflect.DeepEqual(c.Versions.Specific, []int64{1, 3}) || !reflect.DeepEqual(c.Batching.PreferredBatch, []int{4, 8}) || c.Batching.MaxQueueDelay != 100*time.Microsecond {
		t.Errorf("policy %+v, batching %+v", c.Versions, c.Batching)
	}
	if w := c.Warmups[0]; len(c.Warmups) != 1 || w.Batch != 4 || w.Runs != 2 || len(w.Inputs) != 2 || !w.Inputs[0].Random || w.Inputs[1].Name != "image" {
		t.Errorf("warm-up: %+v", c.Warmups)
	}
	if c.Params["note"] != "tab\tAAAA" {
		t.Errorf("escapes: %q", c.Params["note"])
	}
}

// tail completes a one-line beginning to a valid configuration.
const tail = "\ninput { name: \"x\" data_type: TYPE_FP32 dims: 4 }\noutput { name: \"y\" data_type: TYPE_FP32 dims: 4 }\n"

func TestParseConfigNamesPlaceFieldValueAndWhatIsAllowed(t *testing.T) {
	const p = "platform: \"onnxruntime_onnx\"\n"
	for _, c := range []struct{ name, text, want string }{
		{"batch below zero", p + "max_batch_size: -1" + tail, "c:2:17: max_batch_size: -1: want an integer from 0 to 4096"},
		{"batch not a number", p + "max_batch_size: many" + tail, "c:2:17: max_batch_size: many: want an integer"},
		{"batch overflows", p + "max_batch_size: 99999999999999999999" + tail, "c:2:17: max_batch_size: 99999999999999999999: want"},
		{"batch twice", p + "max_batch_size: 1\nmax_batch_size: 2" + tail, "c:3:1: max_batch_size: is there twice"},
		{"unknown field", p + "max_batchsize: 4" + tail, "c:2:1: max_batchsize: unknown field; want one of backend"},
		{"unknown nested field", p + "input { nme: \"x\" }", "c:2:9: input.nme: unknown field"},
		{"bad type", p + "input { name: \"x\" data_type: FP32 dims: 1 }", "c:2:30: data_type: FP32: want one of TYPE_BF16"},
		{"negative dim", p + "input { name: \"x\" data_type: TYPE_FP32 dims: [3, -2] }", "c:2:50: input.dims: -2: want an integer from 1"},
		{"variable dim reshaped", p + "input { name: \"x\" data_type: TYPE_FP32 dims: [3, -1] reshape { shape: [-1] } }", "c:2:72: input.reshape.shape: -1: a variable dimension is not supported here"},
		{"variable dim of a reshape", p + "input { name: \"x\" data_type: TYPE_FP32 dims: [3, -1] reshape { shape: [3] } }", "want the graph's own dims"},
		{"variable dim of a sequence", "platform: \"onnxruntime_onnx\" sequence_batching { }\ninput { name: \"x\" data_type: TYPE_FP32 dims: -1 } output { name: \"y\" data_type: TYPE_FP32 dims: 1 }", "a sequence's steps need inputs that are always there"},
		{"variable dim of a variant", p + "input { name: \"x\" data_type: TYPE_FP32 dims: -1 } output { name: \"y\" data_type: TYPE_FP32 dims: 1 } parameters { key: \"family\" value { string_value: \"f\" } }", "a variant of \"f\" needs inputs that are always there"},
		{"optional, no boolean", p + "input { name: \"x\" data_type: TYPE_FP32 dims: 1 optional: maybe }", "input.optional: maybe: want true or false"},
		{"shapes_max", p + "parameters { key: \"shapes_max\" value { string_value: \"0\" } }" + tail, "want shape classes from 1 to 1024"},
		{"zero dim", p + "input { name: \"x\" data_type: TYPE_FP32 dims: 0 }", "c:2:46: input.dims: 0: want an integer from 1"},
		{"huge tensor", p + "input { name: \"x\" data_type: TYPE_FP32 dims: [268435456, 268435456] }", "more than 268435456 elements"},
		{"no dims", p + "input { name: \"x\" data_type: TYPE_FP32 }", "input.dims: \"x\" needs dims"},
		{"no outputs", p + "input { name: \"x\" data_type: TYPE_FP32 dims: 1 }", "output: the model names no output"},
		{"same name", p + "input { name: \"x\" data_type: TYPE_FP32 dims: 4 }" + tail, "\"x\" is there twice"},
		{"platform", "platform: \"tensorrt_plan\"" + tail, "c:1:11: platform: \"tensorrt_plan\": want platform \"onnxruntime_onnx\""},
		{"backend", "backend: \"python\"" + tail, "c:1:10: backend: \"python\": want platform"},
		{"no platform", tail, "c:1:1: platform: the model names none"},
		{"platform not quoted", "platform: onnx" + tail, "c:1:11: platform: onnx: want a string in quotes"},
		{"slo", p + "parameters { key: \"slo_ms\" value { string_value: \"-3\" } }" + tail, "c:2:50: parameters.slo_ms: \"-3\": want a number of milliseconds"},
		{"slo zero", p + "parameters { key: \"slo_ms\" value { string_value: \"0\" } }" + tail, "parameters.slo_ms: \"0\": want milliseconds above 0"},
		{"slo NaN", p + "parameters { key: \"slo_ms\" value { string_value: \"NaN\" } }" + tail, "parameters.slo_ms: \"NaN\": want"},
		{"accuracy above 1", p + "parameters { key: \"accuracy\" value { string_value: \"1.01\" } }" + tail, "c:2:52: parameters.accuracy: \"1.01\": want a number from 0 to 1"},
		{"accuracy below 0", p + "parameters { key: \"accuracy\" value { string_value: \"-0.1\" } }" + tail, "c:2:52: parameters.accuracy: \"-0.1\": want a number from 0 to 1"},
		{"accuracy NaN", p + "parameters { key: \"accuracy\" value { string_value: \"NaN\" } }" + tail, "c:2:52: parameters.accuracy: \"NaN\": want a number from 0 to 1"},
		{"accuracy no number", p + "parameters { key: \"accuracy\" value { string_value: \"good\" } }" + tail, "c:2:52: parameters.accuracy: \"good\": want a number from 0 to 1"},
		{"two policies", p + "version_policy { all {} latest {} }" + tail, "want only one of latest, all, specific"},
		{"preferred above max", p + "max_batch_size: 4 dynamic_batching { preferred_batch_size: 8 }" + tail, "8 is above max_batch_size 4"},
		{"ensemble", p + "ensemble_scheduling { }" + tail, "an ensemble is an application"},
		{"label path", p + "output { label_filename: \"../x\" }", "want a file name within"},
		{"reshape", p + "input { name: \"x\" data_type: TYPE_FP32 dims: 4 reshape { shape: 3 } }", "has 3 elements, dims [4] have 4"},
		{"emulated without alpha", "platform: \"emulated\"" + tail, "an emulated model needs alpha_ms"},
		{"emulated part of a GPU", "platform: \"emulated\" parameters { key: \"alpha_ms\" value { string_value: \"1\" } } parameters { key: \"beta_ms\" value { string_value: \"1\" } } " +
			"parameters { key: \"gpu_use\" value { string_value: \"1.5\" } }" + tail, "parameters.gpu_use: \"1.5\": want the part of a GPU"},
		{"warm-up of no input", p + "model_warmup { inputs { key: \"z\" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }" + tail, `model_warmup.inputs: "z": the model has no such input`},
		{"warm-up dims", p + "model_warmup { inputs { key: \"x\" value { data_type: TYPE_FP32 dims: 3 zero_data: true } } }" + tail, `"x": FP32 [3]: want the input's data_type and dims, FP32 [4]`},
		{"warm-up without content", p + "model_warmup { inputs { key: \"x\" value { data_type: TYPE_FP32 dims: 4 } } }" + tail, `"x": want one of zero_data, random_data and input_data_file`},
		{"warm-up without inputs", p + "model_warmup { name: \"w\" }" + tail, `"w" has 0 inputs; want all 1 of the model`},
		{"warm-up path", p + "model_warmup { inputs { key: \"x\" value { data_type: TYPE_FP32 dims: 4 input_data_file: \"../x\" } } }" + tail, "want a file name within"},
		{"warm-up batch", p + "max_batch_size: 2 model_warmup { batch_size: 3 inputs { key: \"x\" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }" + tail, "3 is above max_batch_size 2"},
		{"scalar for message", p + "input: 3", "c:2:8: input: 3: want a message in braces"},
		{"open brace", p + "input {", "the file ends before \"}\" that closes the message opened at 2:7"},
		{"open string", p + "name: \"abc\n\"", "c:2:7: the string is not closed"},
		{"bad character", p + "name = 3", "c:2:6: unexpected character '='"},
		{"no colon", p + "name \"x\"", "c:2:6: found \"x\" after name; want ':' or '{'"},
		{"list without comma", p + "input { dims: [1 2] }", "c:2:18: found '2' in the list of dims"},
		{"lone minus", p + "max_batch_size: -,", "'-' is not followed by a number"},
		{"bad escape", p + `name: "\q"`, "unknown escape"},
		{"too deep", strings.Repeat("optimization {", 40), "nest deeper than 32"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseConfig("c", []byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant …%s…", err, c.want)
			}
		})
	}
}

func TestParseConfigEmulated(t *testing.T) {
	c, err := ParseConfig("c", []byte(`backend: "emulated" max_batch_size: 8
parameters { key: "alpha_ms" value { string_value: "1.5" } }
parameters { key: "beta_ms" value { string_value: "5" } }
parameters { key: "gpu_use" value { string_value: "0.4" } }`+tail))
	if err != nil {
		t.Fatal(err)
	}
	if c.Platform != PlatformEmulated || c.Emulated.Exec(4) != 11*time.Millisecond || c.GPUUse != 0.4 || c.SLO != DefaultSLO {
		t.Errorf("%+v", c)
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte("platform: \"emulated\"" + tail))
	f.Add([]byte("input [ { dims: [ 1, 2 ] }, < > ]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := ParseConfig("c", text)
		if err == nil {
			if len(c.Inputs) == 0 || len(c.Outputs) == 0 || c.SLO <= 0 || c.BatchMax < 0 || c.BatchMax > BatchMaxLimit {
				t.Errorf("accepted %+v", c)
			}
			return
		}
		e, ok := err.(*SyntaxError)
		if !ok || e.Line < 1 || e.Column < 1 || e.Line > strings.Count(string(text), "\n")+1 {
			t.Errorf("error without a place: %v", err)
		}
	})
}
