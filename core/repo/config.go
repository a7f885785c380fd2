package repo

import (
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"downbeat.dev/core/wire"
)

// Limits on a model's configuration.
const (
	BatchMaxLimit = 4096    // largest max_batch_size
	tensorsMax    = 64      // inputs or outputs of a model
	rankMax       = 16      // dims of a tensor
	elementsMax   = 1 << 28 // product of a tensor's dims
	sloMax        = time.Hour
	DefaultSLO    = 100 * time.Millisecond // of a model without slo_ms
)

// Platforms that a backend of ours runs.
const (
	PlatformONNX     = "onnxruntime_onnx"
	PlatformEmulated = "emulated"
)

// Config is the part of Triton's ModelConfig that Downbeat acts on.
type Config struct {
	Name      string // "" if the file leaves it out
	Platform  string // PlatformONNX or PlatformEmulated
	BatchMax  int    // max_batch_size; 0: the tensors have no batch dimension
	Inputs    []TensorConfig
	Outputs   []TensorConfig
	Instances []InstanceGroup
	Versions  VersionPolicy
	Batching  DynamicBatching
	ModelFile string            // default_model_filename, "model.onnx" if left out
	SLO       time.Duration     // parameter slo_ms, DefaultSLO if left out
	Emulated  Linear            // parameters alpha_ms and beta_ms of an emulated model
	Params    map[string]string // all parameters as written
}

// TensorConfig is one ModelInput or ModelOutput.
type TensorConfig struct {
	wire.Tensor           // as clients see it, without the batch dimension
	Reshape       []int64 // what the graph wants instead of Shape; nil: the same
	LabelFilename string  // outputs only
}

// InstanceGroup is Triton's wish for executors of a model. Backends may read it as advice.
type InstanceGroup struct {
	Name  string
	Kind  string // KIND_AUTO, KIND_CPU, KIND_GPU or KIND_MODEL
	Count int
	GPUs  []int
}

// DynamicBatching is Triton's batching advice. Downbeat's scheduler decides by deadlines and ignores
// it; it is read so that errors in it are seen.
type DynamicBatching struct {
	PreferredBatch []int
	MaxQueueDelay  time.Duration
}

// VersionPolicy says which versions of a model are served.
type VersionPolicy struct {
	Latest   int     // the newest n; 0 unless it is this kind
	All      bool    // every version
	Specific []int64 // exactly these
}

// Linear is ℓ(b) = Alpha·b + Beta.
type Linear struct{ Alpha, Beta time.Duration }

// Exec returns ℓ(b).
func (l Linear) Exec(b int) time.Duration { return l.Alpha*time.Duration(b) + l.Beta }

var datatypes = map[string]string{
	"TYPE_BOOL": "BOOL", "TYPE_UINT8": "UINT8", "TYPE_UINT16": "UINT16", "TYPE_UINT32": "UINT32",
	"TYPE_UINT64": "UINT64", "TYPE_INT8": "INT8", "TYPE_INT16": "INT16", "TYPE_INT32": "INT32",
	"TYPE_INT64": "INT64", "TYPE_FP16": "FP16", "TYPE_FP32": "FP32", "TYPE_FP64": "FP64",
	"TYPE_STRING": "BYTES", "TYPE_BF16": "BF16",
}

// ParseConfig reads a config.pbtxt. file is only used in errors, which are *SyntaxError.
func ParseConfig(file string, text []byte) (*Config, error) {
	root, err := parseText(file, text)
	if err != nil {
		return nil, err
	}
	d := &decoder{file: file}
	c := &Config{ModelFile: "model.onnx", SLO: DefaultSLO, Params: map[string]string{}}
	var backend string
	params := map[string]value{}
	err = d.decode(root, "", rules{
		"name":                   {read: d.text(&c.Name)},
		"platform":               {read: d.text(&c.Platform)},
		"backend":                {read: d.text(&backend)},
		"max_batch_size":         {read: d.integer(&c.BatchMax, 0, BatchMaxLimit)},
		"input":                  {read: d.tensor(&c.Inputs, "input"), repeated: true},
		"output":                 {read: d.tensor(&c.Outputs, "output"), repeated: true},
		"instance_group":         {read: d.instanceGroup(&c.Instances), repeated: true},
		"version_policy":         {read: d.versionPolicy(&c.Versions)},
		"dynamic_batching":       {read: d.dynamicBatching(&c.Batching)},
		"default_model_filename": {read: d.fileName(&c.ModelFile)},
		"parameters":             {read: d.parameter(params), repeated: true},
		"sequence_batching":      {read: d.refuse("stateful models are not supported")},
		"ensemble_scheduling":    {read: d.refuse("ensembles are not supported; call the models one by one")},
		"runtime":                ignored, "batch_input": ignored, "batch_output": ignored, "optimization": ignored,
		"cc_model_filenames": ignored, "metric_tags": ignored, "model_warmup": ignored, "model_operations": ignored,
		"model_transaction_policy": ignored, "model_repository_agents": ignored, "response_cache": ignored, "model_metrics": ignored,
	})
	if err != nil {
		return nil, err
	}
	return c, d.finish(root, c, backend, params)
}

// finish checks what spans several fields and fills in what was left out.
func (d *decoder) finish(root *message, c *Config, backend string, params map[string]value) error {
	for k, v := range params {
		c.Params[k] = v.text
	}
	if err := d.platform(root, c, backend); err != nil {
		return err
	}
	if err := d.millis(params, "slo_ms", &c.SLO, sloMax); err != nil {
		return err
	}
	if c.SLO <= 0 {
		return d.fail(params["slo_ms"], "parameters.slo_ms", "want milliseconds above 0")
	}
	if len(c.Inputs) == 0 || len(c.Outputs) == 0 {
		what := map[bool]string{true: "input", false: "output"}[len(c.Inputs) == 0]
		return d.fail(value{at: root.at}, what, "the model names no %s; want at least one with name, data_type and dims", what)
	}
	for _, b := range c.Batching.PreferredBatch {
		if b > max(c.BatchMax, 1) {
			v, _ := root.find("dynamic_batching")
			return d.fail(v, "dynamic_batching.preferred_batch_size", "%d is above max_batch_size %d", b, c.BatchMax)
		}
	}
	if c.Platform != PlatformEmulated {
		return nil
	}
	return d.emulated(root, c, params)
}

// platform settles c.Platform from platform or backend; Triton accepts either.
func (d *decoder) platform(root *message, c *Config, backend string) error {
	v, ok := root.find("platform")
	field := "platform"
	if !ok || c.Platform == "" {
		if v, ok = root.find("backend"); !ok {
			return d.fail(value{at: root.at}, "platform", "the model names none; want %q or %q", PlatformONNX, PlatformEmulated)
		}
		field = "backend"
		c.Platform = map[string]string{"onnxruntime": PlatformONNX, "emulated": PlatformEmulated}[backend]
	}
	if c.Platform != PlatformONNX && c.Platform != PlatformEmulated {
		return d.fail(v, field, "want platform %q (backend %q) or %q", PlatformONNX, "onnxruntime", PlatformEmulated)
	}
	return nil
}

func (d *decoder) emulated(root *message, c *Config, params map[string]value) error {
	for _, key := range []string{"alpha_ms", "beta_ms"} {
		if _, ok := params[key]; !ok {
			return d.fail(value{at: root.at}, "parameters", "an emulated model needs %s, the milliseconds of ℓ(b) = alpha_ms·b + beta_ms", key)
		}
	}
	if err := d.millis(params, "alpha_ms", &c.Emulated.Alpha, sloMax); err != nil {
		return err
	}
	if err := d.millis(params, "beta_ms", &c.Emulated.Beta, sloMax); err != nil {
		return err
	}
	if c.Emulated.Exec(1) <= 0 {
		return d.fail(params["beta_ms"], "parameters.beta_ms", "alpha_ms and beta_ms are both 0; a batch must take some time")
	}
	return nil
}

// millis reads a parameter of milliseconds between 0 and most, if it is there.
func (d *decoder) millis(params map[string]value, key string, out *time.Duration, most time.Duration) error {
	v, ok := params[key]
	if !ok {
		return nil
	}
	ms, err := parseFloat(v.text)
	if err != nil || !(ms >= 0 && ms <= float64(most/time.Millisecond)) {
		return d.fail(v, "parameters."+key, "want a number of milliseconds from 0 to %d", most/time.Millisecond)
	}
	*out = time.Duration(math.Round(ms * float64(time.Millisecond)))
	return nil
}

func (d *decoder) tensor(out *[]TensorConfig, what string) func(value) error {
	return func(v value) error {
		if len(*out) == tensorsMax {
			return d.fail(v, what, "a model may have at most %d", tensorsMax)
		}
		var t TensorConfig
		var reshaped bool
		r := rules{
			"name":                    {read: d.text(&t.Name)},
			"data_type":               {read: d.datatype(&t.Datatype)},
			"dims":                    {read: d.dim(&t.Shape, what+".dims"), repeated: true},
			"reshape":                 {read: d.reshape(&t.Reshape, &reshaped, what)},
			"is_shape_tensor":         {read: d.mustBeFalse("shape tensors are not supported")},
			"is_non_linear_format_io": {read: d.mustBeFalse("only linear formats are supported")},
		}
		if what == "input" {
			r["format"] = rule{read: d.enum(new(string), "FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW")}
			r["allow_ragged_batch"] = rule{read: d.mustBeFalse("ragged batches are not supported")}
			r["optional"] = rule{read: d.mustBeFalse("optional inputs are not supported")}
		} else {
			r["label_filename"] = rule{read: d.fileName(&t.LabelFilename)}
		}
		if err := d.decode(v.sub, what, r, v); err != nil {
			return err
		}
		if err := d.checkTensor(v, what, t, reshaped); err != nil {
			return err
		}
		for _, o := range *out {
			if o.Name == t.Name {
				return d.fail(v, what+".name", "%q is there twice", t.Name)
			}
		}
		*out = append(*out, t)
		return nil
	}
}

func (d *decoder) checkTensor(v value, what string, t TensorConfig, reshaped bool) error {
	switch {
	case t.Name == "":
		return d.fail(value{at: v.at}, what+".name", "an %s needs a name", what)
	case t.Datatype == "":
		return d.fail(value{at: v.at}, what+".data_type", "%q needs a data_type, such as TYPE_FP32", t.Name)
	case len(t.Shape) == 0:
		return d.fail(value{at: v.at}, what+".dims", "%q needs dims, without the batch dimension", t.Name)
	case elements(t.Shape) > elementsMax:
		return d.fail(value{at: v.at}, what+".dims", "%q has more than %d elements", t.Name, elementsMax)
	case reshaped && elements(t.Shape) != elements(t.Reshape):
		return d.fail(value{at: v.at}, what+".reshape", "%v has %d elements, dims %v have %d", t.Reshape, elements(t.Reshape), t.Shape, elements(t.Shape))
	}
	return nil
}

// elements multiplies dims, stopping above elementsMax so that it cannot overflow.
func elements(shape []int64) int64 {
	n := int64(1)
	for _, s := range shape {
		if n *= s; n > elementsMax {
			return elementsMax + 1
		}
	}
	return n
}

func (d *decoder) datatype(out *string) func(value) error {
	return func(v value) error {
		t, ok := datatypes[v.text]
		if v.sub != nil || v.kind != tokenName || !ok {
			return d.fail(v, "data_type", "want one of %s", strings.Join(slices.Sorted(maps.Keys(datatypes)), ", "))
		}
		*out = t
		return nil
	}
}

func (d *decoder) dim(out *[]int64, field string) func(value) error {
	return func(v value) error {
		n, err := d.int64(v)
		switch {
		case err == nil && n == -1:
			return d.fail(v, field, "variable dimensions are not supported; want a fixed size from 1 to %d", elementsMax)
		case err != nil || n < 1 || n > elementsMax:
			return d.fail(v, field, "want an integer from 1 to %d", elementsMax)
		case len(*out) == rankMax:
			return d.fail(v, field, "a tensor may have at most %d dims", rankMax)
		}
		*out = append(*out, n)
		return nil
	}
}

func (d *decoder) reshape(out *[]int64, reshaped *bool, what string) func(value) error {
	return func(v value) error {
		*reshaped, *out = true, []int64{}
		return d.decode(v.sub, what+".reshape", rules{
			"shape": {read: d.dim(out, what+".reshape.shape"), repeated: true},
		}, v)
	}
}

func (d *decoder) instanceGroup(out *[]InstanceGroup) func(value) error {
	return func(v value) error {
		g := InstanceGroup{Kind: "KIND_AUTO", Count: 1}
		err := d.decode(v.sub, "instance_group", rules{
			"name":         {read: d.text(&g.Name)},
			"kind":         {read: d.enum(&g.Kind, "KIND_AUTO", "KIND_CPU", "KIND_GPU", "KIND_MODEL")},
			"count":        {read: d.integer(&g.Count, 1, 1024)},
			"gpus":         {read: d.integers(&g.GPUs, 0, 1023), repeated: true},
			"rate_limiter": ignored, "secondary_devices": ignored, "profile": ignored, "passive": ignored, "host_policy": ignored,
		}, v)
		*out = append(*out, g)
		return err
	}
}

func (d *decoder) dynamicBatching(out *DynamicBatching) func(value) error {
	return func(v value) error {
		var delay int
		err := d.decode(v.sub, "dynamic_batching", rules{
			"preferred_batch_size":         {read: d.integers(&out.PreferredBatch, 1, BatchMaxLimit), repeated: true},
			"max_queue_delay_microseconds": {read: d.integer(&delay, 0, int(sloMax/time.Microsecond))},
			"preserve_ordering":            ignored, "priority_levels": ignored, "default_priority_level": ignored,
			"default_queue_policy": ignored, "priority_queue_policy": ignored,
		}, v)
		out.MaxQueueDelay = time.Duration(delay) * time.Microsecond
		return err
	}
}

func (d *decoder) versionPolicy(out *VersionPolicy) func(value) error {
	return func(v value) error {
		var chosen int
		one := func(read func(value) error) func(value) error {
			return func(v value) error {
				if chosen++; chosen > 1 {
					return d.fail(v, "version_policy", "want only one of latest, all, specific")
				}
				return read(v)
			}
		}
		return d.decode(v.sub, "version_policy", rules{
			"latest": {read: one(func(v value) error {
				out.Latest = 1
				return d.decode(v.sub, "version_policy.latest", rules{"num_versions": {read: d.integer(&out.Latest, 1, 1024)}}, v)
			})},
			"all": {read: one(func(v value) error {
				out.All = true
				return d.decode(v.sub, "version_policy.all", rules{}, v)
			})},
			"specific": {read: one(func(v value) error {
				var list []int
				err := d.decode(v.sub, "version_policy.specific", rules{"versions": {read: d.integers(&list, 1, math.MaxInt64), repeated: true}}, v)
				for _, n := range list {
					out.Specific = append(out.Specific, int64(n))
				}
				if err == nil && len(list) == 0 {
					return d.fail(v, "version_policy.specific", "names no versions")
				}
				return err
			})},
		}, v)
	}
}

func (d *decoder) parameter(out map[string]value) func(value) error {
	return func(v value) error {
		var key string
		val := value{at: v.at} // of a parameter without a value
		err := d.decode(v.sub, "parameters", rules{
			"key": {read: d.text(&key)},
			"value": {read: func(v value) error {
				val.at = v.at
				return d.decode(v.sub, "parameters.value", rules{"string_value": {read: func(v value) error {
					val = v
					return d.text(new(string))(v)
				}}}, v)
			}},
		}, v)
		if err != nil {
			return err
		}
		if _, twice := out[key]; twice || key == "" {
			return d.fail(v, "parameters.key", "%q is empty or there twice", key)
		}
		out[key] = val
		return nil
	}
}
