package repo

import (
	"time"
	"unicode/utf8"

	"downbeat.dev/core/model"
)

// Limits of a model's configuration.
const (
	BatchMaxLimit = 4096    // largest max_batch_size
	tensorsMax    = 64      // inputs or outputs of a model
	groupsMax     = 256     // instance groups of a model
	rankMax       = 16      // dims of a tensor
	elementsMax   = 1 << 28 // product of a tensor's dims
	sloMax        = time.Hour
	bytesMaxLimit = 8 << 20                // parameter bytes_max
	DefaultSLO    = 100 * time.Millisecond // of a model without slo_ms
)

// DefaultBytesMax is the space in a row for BYTES elements and their lengths, for models without bytes_max.
const DefaultBytesMax = 64 << 10

// DefaultShapesMax is the largest number of shape classes of a version, for models without shapes_max.
const DefaultShapesMax = 32

// Platforms that a backend runs.
const (
	PlatformONNX     = "onnxruntime_onnx"
	PlatformEmulated = "emulated"
)

// Config is the part of Triton's ModelConfig that Downbeat uses.
type Config struct {
	Name      string // "" if the file omits it
	Platform  string // PlatformONNX or PlatformEmulated
	BatchMax  int    // max_batch_size; 0: the tensors have no batch dimension
	Inputs    []TensorConfig
	Outputs   []TensorConfig
	Instances []InstanceGroup
	Versions  VersionPolicy
	Batching  DynamicBatching
	Warmups   []Warmup
	ModelFile string            // default_model_filename, by default "model.onnx"
	SLO       time.Duration     // parameter slo_ms, by default DefaultSLO
	SLOBinds  bool              // parameter slo_binds: the SLO limits every deadline
	BytesMax  int               // parameter bytes_max, by default DefaultBytesMax
	ShapesMax int               // parameter shapes_max, by default DefaultShapesMax
	Emulated  Linear            // parameters alpha_ms and beta_ms of an emulated model
	GPUUse    float64           // parameter gpu_use of an emulated model: the part of a GPU that it uses; 0: all
	Family    string            // parameter family
	Variant   string            // parameter variant
	Accuracy  float64           // parameter accuracy, 0…1; 0: not given
	ExitOf    string            // parameter exit_of: the model in the same repository of which this is an early exit
	ExitStage int               // parameter exit_stage: the number of that model's exit, from 1; 0: no exit
	Params    map[string]string // all parameters as written
	Agents    []Agent           // model_repository_agents; Open verifies their checksums
	Warnings  []string          // a sentence with its place for each field that was read but has no effect
	Sequence  *model.Sequence   // sequence_batching; its tensors are the last inputs and outputs. nil: none
	initial   []string          // by state: the file with its initial value; empty: zeros
	text      string            // the text that was parsed

	graphInputs, graphOutputs bool // the tensors come from the graph
}

// wireText returns the text for clients that ask for the configuration; empty if a message cannot carry it.
func (c *Config) wireText() string {
	// The text is informative, so leave it out if it does not fit.
	if len(c.text) > model.ConfigBytesMax || !utf8.ValidString(c.text) {
		return ""
	}
	return c.text
}

// Linear is ℓ(b) = Alpha·b + Beta.
type Linear struct{ Alpha, Beta time.Duration }

// Exec returns ℓ(b).
func (l Linear) Exec(b int) time.Duration { return l.Alpha*time.Duration(b) + l.Beta }
