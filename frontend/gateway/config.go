package gateway

import (
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/prototext"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
)

// modelConfig returns a model's configuration in force: its config.pbtxt, completed with the values that serving the
// model has determined. Fields that apply only to Triton's other backends are left out.
func modelConfig(m *frontend.Model) *oip.ModelConfig {
	c := new(oip.ModelConfig)
	if err := (prototext.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(m.Config), c); err != nil {
		c = new(oip.ModelConfig) // the repository reads more than prototext; the fields set below hold nonetheless
	}

	c.Name, c.Platform, c.MaxBatchSize = m.Name, m.Platform, 0
	if !m.Unbatched {
		c.MaxBatchSize = int32(min(m.BatchMax, rowsMax))
	}
	if c.Backend == "" {
		c.Backend = backendNames[m.Platform]
	}
	if c.VersionPolicy == nil {
		c.VersionPolicy = &oip.ModelVersionPolicy{PolicyChoice: &oip.ModelVersionPolicy_Latest_{Latest: &oip.ModelVersionPolicy_Latest{NumVersions: 1}}}
	}

	// The scheduler always batches, and clients read that from the configuration.
	if c.SchedulingChoice == nil && c.MaxBatchSize > 1 && m.Sequence == nil {
		c.SchedulingChoice = &oip.ModelConfig_DynamicBatching{DynamicBatching: new(oip.ModelDynamicBatching)}
	}

	// Defaults of absent fields are in force too.
	if m.Sequence != nil {
		of := c.GetSequenceBatching()
		if of == nil {
			of = new(oip.ModelSequenceBatching)
			c.SchedulingChoice = &oip.ModelConfig_SequenceBatching{SequenceBatching: of}
		}
		of.MaxSequenceIdleMicroseconds = uint64(time.Duration(m.Sequence.Idle) / time.Microsecond)
	}

	c.Input = configInputs(c.Input, m)
	c.Output = configOutputs(c.Output, m.Outputs)
	return c
}

// backendNames maps platforms to Triton's names of their backends.
var backendNames = map[string]string{"onnxruntime_onnx": "onnxruntime", "emulated": "emulated"}

// configInputs describes a model's inputs, with the further fields of the file.
func configInputs(file []*oip.ModelInput, m *frontend.Model) []*oip.ModelInput {
	said := map[string]*oip.ModelInput{}
	for _, in := range file {
		said[in.Name] = in
	}

	// Names, datatypes and shapes are those of the loaded model; the file only adds fields.
	all := make([]*oip.ModelInput, len(m.Inputs))
	for i, t := range m.Inputs {
		if all[i] = said[t.Name]; all[i] == nil {
			all[i] = &oip.ModelInput{Name: t.Name}
		}
		all[i].DataType, all[i].Dims, all[i].Optional = dataType(t.Datatype), t.Shape, m.MayLack(i)
		if all[i].Format == oip.ModelInput_FORMAT_NONE {
			all[i].Format = imageFormat(t)
		}
	}
	return all
}

// configOutputs is configInputs for outputs.
func configOutputs(file []*oip.ModelOutput, ts []model.Tensor) []*oip.ModelOutput {
	said := map[string]*oip.ModelOutput{}
	for _, out := range file {
		said[out.Name] = out
	}

	all := make([]*oip.ModelOutput, len(ts))
	for i, t := range ts {
		if all[i] = said[t.Name]; all[i] == nil {
			all[i] = &oip.ModelOutput{Name: t.Name}
		}
		all[i].DataType, all[i].Dims = dataType(t.Datatype), t.Shape
	}
	return all
}

// dataType returns a datatype's number in the protocol, 0 if it has none.
func dataType(t model.Datatype) oip.DataType {
	// The protocol's numbers follow the order of our list, from 1 on.
	return oip.DataType(1 + slices.Index(model.Datatypes(), t))
}

// imageFormat guesses an image tensor's layout from the position of its one or three channels.
func imageFormat(t model.Tensor) oip.ModelInput_Format {
	channels := func(d int64) bool { return d == 1 || d == 3 }
	switch {
	case len(t.Shape) != 3:
	case channels(t.Shape[0]):
		return oip.ModelInput_FORMAT_NCHW
	case channels(t.Shape[2]):
		return oip.ModelInput_FORMAT_NHWC
	}
	return oip.ModelInput_FORMAT_NONE
}
