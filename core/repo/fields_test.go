package repo

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/model"
)

// messages are the fields of Triton's model configuration, message by message; fieldRows says how each is treated.
var messages = map[string]string{
	"": `backend batch_input batch_output cc_model_filenames default_model_filename dynamic_batching ensemble_scheduling input
instance_group max_batch_size metric_tags model_metrics model_operations model_repository_agents model_transaction_policy
model_warmup name optimization output parameters platform response_cache runtime sequence_batching version_policy`,
	"input":                                     "allow_ragged_batch data_type dims format is_non_linear_format_io is_shape_tensor name optional reshape",
	"input.reshape":                             "shape",
	"output":                                    "data_type dims is_non_linear_format_io is_shape_tensor label_filename name reshape",
	"output.reshape":                            "shape",
	"version_policy":                            "all latest specific",
	"version_policy.latest":                     "num_versions",
	"version_policy.specific":                   "versions",
	"dynamic_batching":                          "default_priority_level default_queue_policy max_queue_delay_microseconds preferred_batch_size preserve_ordering priority_levels priority_queue_policy",
	"dynamic_batching.default_queue_policy":     "allow_timeout_override default_timeout_microseconds max_queue_size timeout_action",
	"instance_group":                            "count gpus host_policy kind name passive profile rate_limiter secondary_devices",
	"parameters":                                "key value",
	"parameters.value":                          "string_value",
	"model_warmup":                              "batch_size count inputs name",
	"model_warmup.inputs":                       "key value",
	"model_warmup.inputs.value":                 "data_type dims input_data_file random_data zero_data",
	"model_transaction_policy":                  "decoupled",
	"sequence_batching":                         "control_input direct generative_sequence iterative_sequence max_sequence_idle_microseconds oldest state",
	"sequence_batching.control_input":           "control name",
	"sequence_batching.control_input.control":   "bool_false_true data_type fp32_false_true int32_false_true kind",
	"sequence_batching.direct":                  "max_queue_delay_microseconds minimum_slot_utilization",
	"sequence_batching.oldest":                  "max_candidate_sequences max_queue_delay_microseconds preferred_batch_size preserve_ordering",
	"sequence_batching.state":                   "data_type dims initial_state input_name output_name use_growable_memory use_same_buffer_for_input_output",
	"sequence_batching.state.initial_state":     "data_file data_type dims name zero_data",
	"response_cache":                            "enable",
	"model_repository_agents":                   "agents",
	"model_repository_agents.agents":            "name parameters",
	"model_repository_agents.agents.parameters": "key value",
}

// fieldRow is one way to write a field, and its treatment: one of the last three fields.
type fieldRow struct {
	field    string // with the messages around it, separated by dots
	text     string // replaces head, or is added to it
	honoured func(*Config) bool
	warned   string // why it is not honoured
	refused  string
}

const fieldHead = "platform: \"onnxruntime_onnx\" max_batch_size: 8"

// TestEveryFieldIsHonouredRefusedOrWarnedOf shows that no part of Triton's configuration is accepted silently.
func TestEveryFieldIsHonouredRefusedOrWarnedOf(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range slices.Concat(fieldRows, sequenceRows) {
		seen[r.field] = true
		c, err := ParseConfig("c", []byte(fieldHead+"\n"+r.text+tail))
		switch {
		case r.refused != "":
			if err == nil || !strings.HasPrefix(err.Error(), "c:2:") || !strings.Contains(err.Error(), r.refused) {
				t.Errorf("%s: %v, want c:2:…%s…", r.text, err, r.refused)
			}
		case err != nil:
			t.Errorf("%s: %v", r.text, err)
		case r.warned != "":
			if len(c.Warnings) != 1 || !strings.HasPrefix(c.Warnings[0], "c:2:") || !strings.Contains(c.Warnings[0], r.field+": read but not honoured: "+r.warned) {
				t.Errorf("%s: warnings %q, want one of %s: …%s…", r.text, c.Warnings, r.field, r.warned)
			}
		case r.honoured == nil || !r.honoured(c) || len(c.Warnings) > 0:
			t.Errorf("%s: is not what was read: %+v", r.text, c)
		}
	}

	for message, fields := range messages {
		for _, f := range strings.Fields(fields) {
			path := strings.TrimPrefix(message+"."+f, ".")
			if !seen[path] && messages[path] == "" {
				t.Errorf("%s: no row says what becomes of it", path)
			}
		}
	}
}

// TestMessagesHaveTheirFields shows that the parser knows exactly the fields in the table above.
func TestMessagesHaveTheirFields(t *testing.T) {
	for _, message := range slices.Sorted(maps.Keys(messages)) {
		text := "bogus: 1"
		names := strings.Split(message, ".")
		for i := len(names) - 1; i >= 0 && message != ""; i-- {
			text = names[i] + " { " + text + " }"
		}

		_, err := ParseConfig("c", []byte(text))
		_, list, _ := strings.Cut(strings.TrimSpace(errorText(err)), "unknown field; want one of ")
		if want := strings.Join(strings.Fields(messages[message]), ", "); list != want {
			t.Errorf("%s: %v\nwant %s", message, err, want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// in and out write a tensor's field beside the fields that every tensor has.
func in(field string) string {
	return `input { name: "z" data_type: TYPE_FP32 dims: 6 ` + field + " }"
}

func out(field string) string { return "out" + strings.TrimPrefix(in(field), "in") }

func batching(field string) string { return "dynamic_batching { " + field + " }" }

func policy(field string) string { return batching("default_queue_policy { " + field + " }") }

func group(field string) string { return "instance_group { " + field + " }" }

func warmup(field, value string) string {
	return `model_warmup { name: "w" ` + field + ` inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 ` + value + ` } } }`
}

func agents(key, value string) string {
	return `model_repository_agents { agents { name: "checksum" parameters { key: "` + key + `" value: "` + value + `" } } }`
}

func parameter(key, value string) string {
	return `parameters { key: "` + key + `" value { string_value: "` + value + `" } }`
}

func sequence(field string) string { return "sequence_batching { " + field + " }" }

func control(field string) string {
	return sequence(`control_input { name: "c" control { ` + field + ` } }`)
}

func state(field string) string {
	return sequence(`state { input_name: "s" output_name: "t" data_type: TYPE_INT32 dims: 2 ` + field + ` }`)
}

func initial(field string) string {
	return state(`initial_state { name: "i" data_type: TYPE_INT32 dims: 2 ` + field + ` }`)
}

// isControl reports whether the configuration has one control of these values.
func isControl(kind model.ControlKind, of model.Datatype, no, yes []byte) func(*Config) bool {
	return func(c *Config) bool {
		k, t := c.Sequence.Controls[0], c.Inputs[len(c.Inputs)-1]
		return k.Input == "c" && k.Kind == kind && string(k.False) == string(no) && string(k.True) == string(yes) && t.Name == "c" && t.Datatype == of
	}
}

func isState(c *Config) bool {
	x, in, out := c.Sequence.States[0], c.Inputs[len(c.Inputs)-1], c.Outputs[len(c.Outputs)-1]
	return x.Input == "s" && x.Output == "t" && in.Name == "s" && out.Name == "t" && in.Datatype == model.Int32 && out.Shape[0] == 2
}

var sequenceRows = []fieldRow{
	{field: "sequence_batching", text: sequence(""), honoured: func(c *Config) bool { return c.Sequence.Idle == int64(time.Second) && len(c.Inputs) == 1 }},
	{field: "sequence_batching", text: sequence("") + parameter("family", "f") + parameter("variant", "v"), refused: "one variant's state is not another's"},
	{field: "sequence_batching.max_sequence_idle_microseconds", text: sequence("max_sequence_idle_microseconds: 5000000"), honoured: func(c *Config) bool { return c.Sequence.Idle == int64(5*time.Second) }},
	{field: "sequence_batching.max_sequence_idle_microseconds", text: sequence("max_sequence_idle_microseconds: -1"), refused: "max_sequence_idle_microseconds"},
	{field: "sequence_batching.iterative_sequence", text: sequence("iterative_sequence: true"), refused: "every request has one answer"},
	{field: "sequence_batching.generative_sequence", text: sequence("generative_sequence: true"), refused: "every request has one answer"},
	{field: "sequence_batching.direct", text: sequence("direct { }"), honoured: func(c *Config) bool { return c.Sequence != nil }},
	{field: "sequence_batching.direct.max_queue_delay_microseconds", text: sequence("direct { max_queue_delay_microseconds: 5 }"), warned: "a batch is made of the steps that wait"},
	{field: "sequence_batching.direct.minimum_slot_utilization", text: sequence("direct { minimum_slot_utilization: 0.5 }"), warned: "a batch is made of the steps that wait"},
	{field: "sequence_batching.oldest", text: sequence("oldest { }"), honoured: func(c *Config) bool { return c.Sequence != nil }},
	{field: "sequence_batching.oldest.max_candidate_sequences", text: sequence("oldest { max_candidate_sequences: 4 }"), warned: "a batch is made of the steps that wait"},
	{field: "sequence_batching.oldest.max_queue_delay_microseconds", text: sequence("oldest { max_queue_delay_microseconds: 4 }"), warned: "a batch is made of the steps that wait"},
	{field: "sequence_batching.oldest.preferred_batch_size", text: sequence("oldest { preferred_batch_size: [ 4, 6 ] }"), warned: "a batch is made of the steps that wait"},
	{field: "sequence_batching.oldest.preserve_ordering", text: sequence("oldest { preserve_ordering: true }"), warned: "a batch is made of the steps that wait"},
	{field: "sequence_batching.control_input.name", text: sequence(`control_input { control { int32_false_true: [ 0, 1 ] } }`), refused: "want a name and one control"},
	{field: "sequence_batching.control_input.name", text: control("int32_false_true: [ 0, 1 ]"), honoured: isControl(model.ControlStart, model.Int32, []byte{0, 0, 0, 0}, []byte{1, 0, 0, 0})},
	{field: "sequence_batching.control_input.control", text: sequence(`control_input { name: "c" }`), refused: "want a name and one control"},
	{field: "sequence_batching.control_input.control", text: sequence(strings.Repeat(`control_input { name: "c" control { int32_false_true: [ 0, 1 ] } }`, 2)), refused: "another control is of the same kind"},
	{field: "sequence_batching.control_input.control", text: sequence(`control_input { name: "x" control { int32_false_true: [ 0, 1 ] } }`), refused: `"x" is an input of the model, too`},
	{field: "sequence_batching.control_input.control.kind", text: control("kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ]"), honoured: isControl(model.ControlEnd, model.Int32, []byte{0, 0, 0, 0}, []byte{1, 0, 0, 0})},
	{field: "sequence_batching.control_input.control.kind", text: control("kind: CONTROL_SEQUENCE_MIDDLE"), refused: "CONTROL_SEQUENCE_MIDDLE"},
	{field: "sequence_batching.control_input.control.int32_false_true", text: control("int32_false_true: [ -1 ]"), refused: "want two values"},
	{field: "sequence_batching.control_input.control.int32_false_true", text: control("int32_false_true: [ -1, 1 ]"), honoured: isControl(model.ControlStart, model.Int32, []byte{255, 255, 255, 255}, []byte{1, 0, 0, 0})},
	{field: "sequence_batching.control_input.control.fp32_false_true", text: control("kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ]"), honoured: isControl(model.ControlReady, model.FP32, []byte{0, 0, 0, 0}, []byte{0, 0, 0x80, 0x3f})},
	{field: "sequence_batching.control_input.control.fp32_false_true", text: control("fp32_false_true: [ 0, 1, 2 ]"), refused: "want two numbers"},
	{field: "sequence_batching.control_input.control.bool_false_true", text: control("bool_false_true: [ false, true ]"), honoured: isControl(model.ControlStart, model.Bool, []byte{0}, []byte{1})},
	{field: "sequence_batching.control_input.control.bool_false_true", text: control("bool_false_true: [ 0, 1 ]"), refused: "want false, true"},
	{field: "sequence_batching.control_input.control.data_type", text: control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64"), honoured: isControl(model.ControlID, model.Uint64, nil, nil)},
	{field: "sequence_batching.control_input.control.data_type", text: control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING"), refused: "sequences that are named by text have no number"},
	{field: "sequence_batching.control_input.control.data_type", text: control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32"), refused: "want a sequence's number as UINT64"},
	{field: "sequence_batching.state.input_name", text: state(""), honoured: isState},
	{field: "sequence_batching.state.output_name", text: sequence(`state { input_name: "s" data_type: TYPE_INT32 dims: 2 }`), refused: "want input_name and output_name"},
	{field: "sequence_batching.state.data_type", text: sequence(`state { input_name: "s" output_name: "t" data_type: TYPE_STRING dims: 2 }`), refused: "texts have no fixed size"},
	{field: "sequence_batching.state.dims", text: state("dims: -1"), refused: "a variable dimension is not supported here"},
	{field: "sequence_batching.state.use_growable_memory", text: state("use_growable_memory: true"), refused: "a state has one size"},
	{field: "sequence_batching.state.use_same_buffer_for_input_output", text: state("use_same_buffer_for_input_output: true"), warned: "state travels with its step"},
	{field: "sequence_batching.state.initial_state", text: state("initial_state { }"), refused: "want one of zero_data and data_file"},
	{field: "sequence_batching.state.initial_state.zero_data", text: initial("zero_data: true"), honoured: isState},
	{field: "sequence_batching.state.initial_state.data_file", text: initial(`data_file: "f"`), honoured: func(c *Config) bool { return c.initial[0] == "f" }},
	{field: "sequence_batching.state.initial_state.data_file", text: initial(`data_file: "../f"`), refused: "want a file name within the model's directory"},
	{field: "sequence_batching.state.initial_state.name", text: initial(`zero_data: true data_file: "f"`), refused: `"i": want one of zero_data and data_file`},
	{field: "sequence_batching.state.initial_state.data_type", text: state(`initial_state { data_type: TYPE_FP32 dims: 2 zero_data: true }`), refused: "want the state's data_type"},
	{field: "sequence_batching.state.initial_state.dims", text: state(`initial_state { data_type: TYPE_INT32 dims: 3 zero_data: true }`), refused: "as many elements as dims have"},
}

const sum = "0123456789abcdef0123456789ABCDEF"

var fieldRows = []fieldRow{
	{field: "name", text: `name: "n"`, honoured: func(c *Config) bool { return c.Name == "n" }},
	{field: "platform", text: "", honoured: func(c *Config) bool { return c.Platform == PlatformONNX }},
	{field: "backend", text: `backend: "onnxruntime"`, honoured: func(c *Config) bool { return c.Platform == PlatformONNX }},
	{field: "backend", text: `backend: "python"`, refused: `backend: "python": platform is "onnxruntime_onnx"; want its backend`},
	{field: "max_batch_size", text: "", honoured: func(c *Config) bool { return c.BatchMax == 8 }},
	{field: "default_model_filename", text: `default_model_filename: "m"`, honoured: func(c *Config) bool { return c.ModelFile == "m" }},
	{field: "batch_input", text: `batch_input { kind: BATCH_ELEMENT_COUNT }`, refused: "no backend here makes additional inputs"},
	{field: "batch_output", text: `batch_output { }`, refused: "no backend here scatters outputs"},
	{field: "cc_model_filenames", text: `cc_model_filenames { key: "8.0" value: "x" }`, warned: "the file is"},
	{field: "ensemble_scheduling", text: `ensemble_scheduling { }`, refused: "an ensemble is an application"},
	{field: "metric_tags", text: `metric_tags { key: "a" value: "b" }`, warned: "metrics are labelled"},
	{field: "model_metrics", text: `model_metrics { }`, warned: "histograms have fixed buckets"},
	{field: "model_operations", text: `model_operations { op_library_filename: "x.so" }`, refused: "libraries of custom operators"},
	{field: "optimization", text: `optimization { cuda { graphs: true } }`, warned: "the backend chooses"},
	{field: "runtime", text: `runtime: "x"`, warned: "models run in the backend's own process"},

	{field: "input.name", text: in(""), honoured: func(c *Config) bool { return c.Inputs[0].Name == "z" }},
	{field: "input.data_type", text: in(""), honoured: func(c *Config) bool { return c.Inputs[0].Datatype == "FP32" }},
	{field: "input.dims", text: in(""), honoured: func(c *Config) bool { return slices.Equal(c.Inputs[0].Shape, []int64{6}) }},
	{field: "input.dims", text: strings.Replace(in(""), "dims: 6", "dims: [ -1, 6 ]", 1), honoured: func(c *Config) bool { return slices.Equal(c.Inputs[0].Shape, []int64{model.OpenDim, 6}) }},
	{field: "input.format", text: in("format: FORMAT_NHWC"), honoured: func(c *Config) bool { return strings.Contains(c.text, "FORMAT_NHWC") }}, // clients see it
	{field: "input.reshape.shape", text: in("reshape { shape: [2, 3] }"), honoured: func(c *Config) bool { return slices.Equal(c.Inputs[0].Reshape, []int64{2, 3}) }},
	{field: "input.allow_ragged_batch", text: in("allow_ragged_batch: true"), refused: "ragged batches are not supported"},
	{field: "input.is_non_linear_format_io", text: in("is_non_linear_format_io: true"), refused: "only linear formats"},
	{field: "input.is_shape_tensor", text: in("is_shape_tensor: true"), refused: "shape tensors are not supported"},
	{field: "input.optional", text: in("optional: true"), honoured: func(c *Config) bool { return c.Inputs[0].Optional && c.info().Optional == 1 }},
	{field: "output.name", text: out(""), honoured: func(c *Config) bool { return c.Outputs[0].Name == "z" }},
	{field: "output.data_type", text: out(""), honoured: func(c *Config) bool { return c.Outputs[0].Datatype == "FP32" }},
	{field: "output.dims", text: out(""), honoured: func(c *Config) bool { return slices.Equal(c.Outputs[0].Shape, []int64{6}) }},
	{field: "output.label_filename", text: out(`label_filename: "l"`), honoured: func(c *Config) bool { return c.Outputs[0].LabelFilename == "l" }},
	{field: "output.reshape.shape", text: out("reshape { shape: [6, 1] }"), honoured: func(c *Config) bool { return slices.Equal(c.Outputs[0].Reshape, []int64{6, 1}) }},
	{field: "output.is_non_linear_format_io", text: out("is_non_linear_format_io: true"), refused: "only linear formats"},
	{field: "output.is_shape_tensor", text: out("is_shape_tensor: true"), refused: "shape tensors are not supported"},

	{field: "version_policy.all", text: "version_policy { all {} }", honoured: func(c *Config) bool { return c.Versions.All }},
	{field: "version_policy.latest.num_versions", text: "version_policy { latest { num_versions: 2 } }", honoured: func(c *Config) bool { return c.Versions.Latest == 2 }},
	{field: "version_policy.specific.versions", text: "version_policy { specific { versions: [3] } }", honoured: func(c *Config) bool { return slices.Equal(c.Versions.Specific, []int64{3}) }},

	{field: "dynamic_batching.preferred_batch_size", text: batching("preferred_batch_size: [4]"), warned: "a batch grows as long as"},
	{field: "dynamic_batching.max_queue_delay_microseconds", text: batching("max_queue_delay_microseconds: 1"), warned: "a batch waits as long as"},
	{field: "dynamic_batching.preserve_ordering", text: batching("preserve_ordering: true"), warned: "answers leave as they are done"},
	{field: "dynamic_batching.priority_levels", text: batching("priority_levels: 3 default_priority_level: 2"), honoured: func(c *Config) bool { return c.Batching.Levels == 3 }},
	{field: "dynamic_batching.priority_levels", text: batching("priority_levels: 300 default_priority_level: 2"), warned: "levels beyond 255"},
	{field: "dynamic_batching.priority_levels", text: batching("priority_levels: 3"), refused: "default_priority_level: 0: want 1 to priority_levels, 3"},
	{field: "dynamic_batching.default_priority_level", text: batching("priority_levels: 3 default_priority_level: 2"), honoured: func(c *Config) bool { return c.Batching.Priority() == 254 }},
	{field: "dynamic_batching.default_priority_level", text: batching("default_priority_level: 3"), refused: "want priority_levels as well"},
	{field: "dynamic_batching.priority_queue_policy", text: batching("priority_queue_policy { key: 1 value { max_queue_size: 2 } }"), warned: "default_queue_policy holds"},
	{field: "dynamic_batching.default_queue_policy.timeout_action", text: policy("timeout_action: REJECT"), honoured: func(c *Config) bool { return c.Batching.Timeout == 0 }}, // the only behaviour
	{field: "dynamic_batching.default_queue_policy.timeout_action", text: policy("timeout_action: DELAY"), warned: "a request that can no longer meet"},
	{field: "dynamic_batching.default_queue_policy.default_timeout_microseconds", text: policy("default_timeout_microseconds: 7000"),
		honoured: func(c *Config) bool { return c.SLO == 7*time.Millisecond && c.SLOBinds }},
	{field: "dynamic_batching.default_queue_policy.allow_timeout_override", text: policy("allow_timeout_override: true"), honoured: func(c *Config) bool { return !c.SLOBinds }}, // the only behaviour
	{field: "dynamic_batching.default_queue_policy.allow_timeout_override", text: policy("allow_timeout_override: false"), warned: "a request's own timeout holds"},
	{field: "dynamic_batching.default_queue_policy.max_queue_size", text: policy("max_queue_size: 5"), honoured: func(c *Config) bool { return c.Batching.QueueMax == 5 }},

	{field: "instance_group.name", text: group(`name: "g"`), warned: "executors are named by their GPU or core"},
	{field: "instance_group.kind", text: group("kind: KIND_AUTO"), honoured: func(c *Config) bool { return c.Instances[0].Kind == "KIND_AUTO" }},
	{field: "instance_group.kind", text: group("kind: KIND_GPU"), warned: "the backend's options say"},
	{field: "instance_group.kind", text: group("kind: KIND_CPU"), warned: "the backend's options say"},
	{field: "instance_group.kind", text: group("kind: KIND_MODEL"), warned: "the backend's options say"},
	{field: "instance_group.count", text: group("count: 1"), honoured: func(c *Config) bool { return c.Instances[0].Count == 1 }},
	{field: "instance_group.count", text: group("count: 2"), warned: "every executor"},
	{field: "instance_group.gpus", text: group("gpus: [0]"), warned: "every GPU"},
	{field: "instance_group.rate_limiter", text: group("rate_limiter { priority: 2 }"), warned: "the scheduler shares"},
	{field: "instance_group.secondary_devices", text: group("secondary_devices { device_id: 1 }"), warned: "there is none"},
	{field: "instance_group.profile", text: group(`profile: "0"`), warned: "it chooses among TensorRT's"},
	{field: "instance_group.passive", text: group("passive: true"), warned: "every executor takes batches"},
	{field: "instance_group.host_policy", text: group(`host_policy: "x"`), warned: "-cores of a backend"},

	{field: "parameters.key", text: parameter("mine", "1"), honoured: func(c *Config) bool { return c.Params["mine"] == "1" }},
	{field: "parameters.value.string_value", text: parameter("bytes_max", "9"), honoured: func(c *Config) bool { return c.BytesMax == 9 }},
	{field: "parameters.value.string_value", text: parameter("bytes_max", "99999999"), refused: "want bytes from 1 to"},
	{field: "parameters.value.string_value", text: parameter("slo_binds", "yes"), refused: `want "true" or "false"`},
	{field: "parameters.intra_op_thread_count", text: parameter("intra_op_thread_count", "4"), warned: "an executor runs on one core"},
	{field: "parameters.session.use_device_allocator_for_initializers", text: parameter("session.use_device_allocator_for_initializers", "1"), warned: "an executor runs on one core"},

	{field: "model_warmup.name", text: warmup("", "zero_data: true"), honoured: func(c *Config) bool { return c.Warmups[0].Name == "w" }},
	{field: "model_warmup.batch_size", text: warmup("batch_size: 3", "zero_data: true"), honoured: func(c *Config) bool { return c.Warmups[0].Batch == 3 }},
	{field: "model_warmup.count", text: warmup("count: 3", "zero_data: true"), honoured: func(c *Config) bool { return c.Warmups[0].Runs == 3 }},
	{field: "model_warmup.inputs.key", text: warmup("", "zero_data: true"), honoured: func(c *Config) bool { return c.Warmups[0].Inputs[0].Name == "x" }},
	{field: "model_warmup.inputs.value.data_type", text: warmup("", "zero_data: true"), honoured: func(c *Config) bool { return c.Warmups[0].Inputs[0].Datatype == "FP32" }},
	{field: "model_warmup.inputs.value.dims", text: warmup("", "zero_data: true"), honoured: func(c *Config) bool { return slices.Equal(c.Warmups[0].Inputs[0].Shape, []int64{4}) }},
	{field: "model_warmup.inputs.value.zero_data", text: warmup("", "zero_data: true"), honoured: func(c *Config) bool { return !c.Warmups[0].Inputs[0].Random }},
	{field: "model_warmup.inputs.value.random_data", text: warmup("", "random_data: true"), honoured: func(c *Config) bool { return c.Warmups[0].Inputs[0].Random }},
	{field: "model_warmup.inputs.value.input_data_file", text: warmup("", `input_data_file: "f"`), honoured: func(c *Config) bool { return c.Warmups[0].Inputs[0].File == "f" }},

	{field: "model_transaction_policy.decoupled", text: "model_transaction_policy { decoupled: true }", refused: "decoupled models are not supported"},
	{field: "response_cache.enable", text: "response_cache { enable: true }", warned: "no cache is kept"},
	{field: "model_repository_agents.agents.name", text: agents("MD5:x", sum), honoured: func(c *Config) bool { return c.Agents[0].Name == "checksum" }},
	{field: "model_repository_agents.agents.name", text: `model_repository_agents { agents { name: "aws" } }`, refused: `"aws": want "checksum"`},
	{field: "model_repository_agents.agents.parameters.key", text: agents("MD5:x", sum), honoured: func(c *Config) bool { return c.Agents[0].Sums[0].Path == "x" }},
	{field: "model_repository_agents.agents.parameters.key", text: agents("CRC:x", sum), refused: "want one of MD5, SHA256"},
	{field: "model_repository_agents.agents.parameters.key", text: agents("MD5:../x", sum), refused: "want one of MD5, SHA256"},
	{field: "model_repository_agents.agents.parameters.value", text: agents("MD5:x", sum), honoured: func(c *Config) bool { return c.Agents[0].Sums[0].Sum == sum }},
	{field: "model_repository_agents.agents.parameters.value", text: agents("MD5:x", "00"), refused: "want the 32 hexadecimal digits"},
}
