package repo

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"downbeat.dev/core/model"
)

// ParseConfig parses a config.pbtxt that describes its model in full. file is used only in errors, which are
// *SyntaxError.
func ParseConfig(file string, text []byte) (*Config, error) { return parseConfig(file, text, nil) }

// parseConfig is ParseConfig with a function complete, unless nil, that fills in missing inputs and outputs. With
// complete, a model without a platform is ONNX.
func parseConfig(file string, text []byte, complete func(c *Config, batchSaid bool) error) (*Config, error) {
	root, err := parseText(file, text)
	if err != nil {
		return nil, err
	}

	c := &Config{ModelFile: "model.onnx", SLO: DefaultSLO, BytesMax: DefaultBytesMax, ShapesMax: DefaultShapesMax, Params: map[string]string{}, text: string(text)}
	d := &decoder{file: file, warnings: &c.Warnings}
	var backend string
	params := map[string]value{}
	var sequence *sequenceConfig

	// Each field of Triton's configuration is read, refused with a reason, or ignored with a warning.
	err = d.decodeFields(root, "", rules{
		"name":                     {read: d.readText(&c.Name)},
		"platform":                 {read: d.readText(&c.Platform)},
		"backend":                  {read: d.readText(&backend)},
		"max_batch_size":           {read: d.readInteger(&c.BatchMax, 0, BatchMaxLimit)},
		"input":                    {read: d.readTensor(&c.Inputs, "input"), repeated: true},
		"output":                   {read: d.readTensor(&c.Outputs, "output"), repeated: true},
		"instance_group":           {read: d.instanceGroup(&c.Instances), repeated: true},
		"version_policy":           {read: d.versionPolicy(&c.Versions)},
		"dynamic_batching":         {read: d.dynamicBatching(&c.Batching)},
		"default_model_filename":   {read: d.fileName(&c.ModelFile)},
		"parameters":               {read: d.readParameter(params), repeated: true},
		"model_warmup":             {read: d.readWarmup(&c.Warmups), repeated: true},
		"sequence_batching":        {read: d.sequenceBatching(&sequence)},
		"ensemble_scheduling":      {read: d.refuseField("an ensemble is an application: want platform \"ensemble\"")},
		"model_repository_agents":  {read: d.readAgents(&c.Agents)},
		"batch_input":              {read: d.refuseField("no backend here makes additional inputs of a batch")},
		"batch_output":             {read: d.refuseField("no backend here scatters outputs of a batch")},
		"model_operations":         {read: d.refuseField("libraries of custom operators are not loaded")},
		"model_transaction_policy": {read: d.transactionPolicy()},
		"response_cache":           {read: d.responseCache()},
		"runtime":                  d.ignoredField("models run in the backend's own process"),
		"optimization":             d.ignoredField("the backend chooses optimisations and accelerators"),
		"cc_model_filenames":       d.ignoredField("the file is default_model_filename on every device"),
		"metric_tags":              d.ignoredField("metrics are labelled by model and version"),
		"model_metrics":            d.ignoredField("histograms have fixed buckets"),
	})

	if err != nil {
		return nil, err
	}
	if err := d.settlePlatform(root, c, backend, complete != nil); err != nil {
		return nil, err
	}

	// Ask the graph last, for what the text omits. An exit runs another model's file, whose outputs have other names.
	_, exit := params["exit_of"]
	if _, batchSaid := root.findField("max_batch_size"); complete != nil && !exit && c.Platform == PlatformONNX && c.needsGraph() {
		if err := complete(c, batchSaid); err != nil {
			return nil, err
		}
	}
	if err := d.finishConfig(root, c, params); err != nil {
		return c, err
	}
	if err := d.settleSequence(root, c, sequence); err != nil {
		return c, err
	}
	if err := c.checkTensors(); err != nil {
		return c, fmt.Errorf("%s: %w", file, err)
	}
	if err := d.readPicture(root, c, params); err != nil {
		return c, err
	}
	return c, d.checkClasses(root, c)
}

// finishConfig checks constraints between fields and sets defaults.
func (d *decoder) finishConfig(root *message, c *Config, params map[string]value) error {
	for k, v := range params {
		c.Params[k] = v.text
	}
	d.warnParameters(params)

	if err := d.readMillis(params, "slo_ms", &c.SLO, sloMax); err != nil {
		return err
	}

	// The queue policy's timeout is the next best bound of a request's latency.
	if _, own := params["slo_ms"]; !own && c.Batching.Timeout > 0 {
		c.SLO, c.SLOBinds = c.Batching.Timeout, true
	}
	if c.SLO <= 0 {
		return d.failAt(params["slo_ms"], "parameters.slo_ms", "want milliseconds above 0")
	}

	if v, ok := params["slo_binds"]; ok {
		if v.text != "true" && v.text != "false" {
			return d.failAt(v, "parameters.slo_binds", "want \"true\" or \"false\"")
		}
		c.SLOBinds = v.text == "true"
	}

	if err := d.readFamily(c, params); err != nil {
		return err
	}

	if err := d.readCount(params, "bytes_max", "bytes", bytesMaxLimit, &c.BytesMax); err != nil {
		return err
	}
	if err := d.readCount(params, "shapes_max", "shape classes", model.ShapesMax, &c.ShapesMax); err != nil {
		return err
	}

	// The graph has been asked, so a missing tensor is an error.
	if len(c.Inputs) == 0 || len(c.Outputs) == 0 {
		what := map[bool]string{true: "input", false: "output"}[len(c.Inputs) == 0]
		return d.failAt(value{at: root.at}, what, "the model names no %s; want at least one with name, data_type and dims", what)
	}

	for _, b := range c.Batching.PreferredBatch {
		if b > max(c.BatchMax, 1) {
			v, _ := root.findField("dynamic_batching")
			return d.failAt(v, "dynamic_batching.preferred_batch_size", "%d is above max_batch_size %d", b, c.BatchMax)
		}
	}

	if err := d.checkWarmups(root, c); err != nil {
		return err
	}

	// Only an emulated model's time comes from its configuration; others are measured.
	if c.Platform != PlatformEmulated {
		return nil
	}
	return d.readEmulated(root, c, params)
}

// readCount reads a parameter that is a number from 1 to most of what it counts; without it, to stays as it is.
func (d *decoder) readCount(params map[string]value, name, counts string, most int, to *int) error {
	v, ok := params[name]
	if !ok {
		return nil
	}

	n, err := strconv.Atoi(v.text)
	if err != nil || n < 1 || n > most {
		return d.failAt(v, "parameters."+name, "want %s from 1 to %d", counts, most)
	}
	*to = n
	return nil
}

// platforms are the platforms of Triton's backends that Downbeat has.
var platforms = map[string]string{"onnxruntime": PlatformONNX, "emulated": PlatformEmulated}

// settlePlatform sets c.Platform from platform or backend. As in Triton, both are accepted if they agree. A model
// that names neither is ONNX if its file describes it.
func (d *decoder) settlePlatform(root *message, c *Config, backend string, completed bool) error {
	v, named := root.findField("platform")
	b, backed := root.findField("backend")
	switch {
	case (!named || c.Platform == "") && backed:
		if c.Platform = platforms[backend]; c.Platform == "" {
			return d.failAt(b, "backend", "want platform %q (backend %q) or %q", PlatformONNX, "onnxruntime", PlatformEmulated)
		}
	case (!named || c.Platform == "") && completed:
		c.Platform = PlatformONNX
	case !named || c.Platform == "":
		return d.failAt(value{at: root.at}, "platform", "the model names none; want %q or %q", PlatformONNX, PlatformEmulated)
	case c.Platform != PlatformONNX && c.Platform != PlatformEmulated:
		return d.failAt(v, "platform", "want platform %q (backend %q) or %q", PlatformONNX, "onnxruntime", PlatformEmulated)
	case backed && backend != "" && platforms[backend] != c.Platform:
		return d.failAt(b, "backend", "platform is %q; want its backend, %q, or none", c.Platform, map[string]string{PlatformONNX: "onnxruntime", PlatformEmulated: "emulated"}[c.Platform])
	}
	return nil
}

// readEmulated reads the profile of an emulated model.
func (d *decoder) readEmulated(root *message, c *Config, params map[string]value) error {
	for _, key := range []string{"alpha_ms", "beta_ms"} {
		if _, ok := params[key]; !ok {
			return d.failAt(value{at: root.at}, "parameters", "an emulated model needs %s, the milliseconds of ℓ(b) = alpha_ms·b + beta_ms", key)
		}
	}
	if err := d.readMillis(params, "alpha_ms", &c.Emulated.Alpha, sloMax); err != nil {
		return err
	}
	if err := d.readMillis(params, "beta_ms", &c.Emulated.Beta, sloMax); err != nil {
		return err
	}

	if c.Emulated.Exec(1) <= 0 {
		return d.failAt(params["beta_ms"], "parameters.beta_ms", "alpha_ms and beta_ms are both 0; a batch must take some time")
	}

	v, ok := params["gpu_use"]
	if !ok {
		return nil
	}
	use, err := parseFloat(v.text)

	// The condition is false for NaN.
	if err != nil || !(use > 0 && use <= 1) {
		return d.failAt(v, "parameters.gpu_use", "want the part of a GPU that the model uses while it runs, above 0 and at most 1")
	}
	c.GPUUse = use
	return nil
}

// readFamily reads the family of a model: any variant of a family may answer a request for it.
func (d *decoder) readFamily(c *Config, params map[string]value) error {
	for key, out := range map[string]*string{"family": &c.Family, "variant": &c.Variant} {
		v := params[key]
		if *out = v.text; len(v.text) > 256 {
			return d.failAt(v, "parameters."+key, "want at most 256 bytes")
		}
	}
	// An exit is a variant, too. Reading the repository checks its parent.
	if err := d.readExit(c, params); err != nil {
		return err
	}
	v, ok := params["accuracy"]
	if !ok {
		return nil
	}

	accuracy, err := strconv.ParseFloat(v.text, 64)

	// The condition is false for NaN.
	if err != nil || !(accuracy >= 0 && accuracy <= 1) {
		return d.failAt(v, "parameters.accuracy", "want a number from 0 to 1")
	}
	c.Accuracy = accuracy
	return nil
}

// readMillis reads an optional parameter in milliseconds, between 0 and most.
func (d *decoder) readMillis(params map[string]value, key string, out *time.Duration, most time.Duration) error {
	v, ok := params[key]
	if !ok {
		return nil
	}

	ms, err := parseFloat(v.text)

	// The condition is false for NaN.
	if err != nil || !(ms >= 0 && ms <= float64(most/time.Millisecond)) {
		return d.failAt(v, "parameters."+key, "want a number of milliseconds from 0 to %d", most/time.Millisecond)
	}
	*out = time.Duration(math.Round(ms * float64(time.Millisecond)))
	return nil
}

func (d *decoder) readParameter(out map[string]value) func(value) error {
	return func(v value) error {
		var key string
		val := value{at: v.at} // of a parameter without a value

		err := d.decodeFields(v.sub, "parameters", rules{
			"key": {read: d.readText(&key)},
			"value": {read: func(v value) error {
				val.at = v.at
				return d.decodeFields(v.sub, "parameters.value", rules{"string_value": {read: func(v value) error {
					val = v
					return d.readText(new(string))(v)
				}}}, v)
			}},
		}, v)
		if err != nil {
			return err
		}

		// A key may occur once: two values would be ambiguous.
		if _, twice := out[key]; twice || key == "" {
			return d.failAt(v, "parameters.key", "%q is empty or there twice", key)
		}
		out[key] = val
		return nil
	}
}
