package gpu

import (
	"fmt"
	"regexp"

	"downbeat.dev/cuda"
	"downbeat.dev/cuda/layers"
)

// Options are the options of "downbeat bench gpu".
type Options struct {
	Check    bool // compare with ONNX Runtime instead of measuring
	Small    bool // with Check: operators and small networks only
	Emulated bool // run on the emulated device, to try the command; its times mean nothing
	JSON     bool
	Library  string   // ONNX Runtime
	Models   string   // folder whose *.onnx files are also checked; "" for none
	Python   string   // an interpreter with torch; "" for none
	Graphs   []string // of Graphs; all if empty
	Batches  []int
	Rounds   int
	Seed     uint64

	Precisions []string // fp32, fp16, bf16; all if empty
	Match      string   // with Check: a regular expression for cases' names
	Tune       bool     // see executor.Config
	Libraries  string   // likewise
	Layers     bool     // also the time of each layer, in the JSON
	found      string   // the libraries
	Lines      string   // a file to which each row is appended as a line of JSON
}

// Validate returns an error if the options name a graph or a precision that does not exist, or cases by no regular
// expression.
func (o Options) Validate() error {
	for _, name := range o.Graphs {
		if Graphs[name] == nil && name != pipelineGraph {
			return fmt.Errorf("graph %q: want resnet50, mobilenet, bert-base or %s", name, pipelineGraph)
		}
	}
	if _, err := regexp.Compile(o.Match); err != nil {
		return fmt.Errorf("cases to match: %w", err)
	}
	_, err := o.parsePrecisions()
	return err
}

// parsePrecisions parses o.Precisions.
func (o Options) parsePrecisions() (all []layers.Precision, err error) {
	if len(o.Precisions) == 0 {
		return []layers.Precision{layers.FP32, layers.FP16, layers.BF16}, nil
	}
	for _, name := range o.Precisions {
		p, err := layers.ParsePrecision(name)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func (o Options) openDevice() (*cuda.Device, error) {
	if o.Emulated {
		return Emulated()
	}
	d, err := cuda.Open(cuda.Config{PinnedBytesMax: 4 << 30})
	if err != nil {
		return nil, fmt.Errorf("%w (downbeat bench gpu needs a GPU and a binary built with the tag cuda; -emulated tries the command without one)", err)
	}
	return d, nil
}
