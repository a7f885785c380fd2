package repo

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"downbeat.dev/core/model"
)

// Sample is one row of a model's inputs, for warm-up and measurements.
type Sample struct {
	Name  string // of the model_warmup entry
	Class string // the shape class of its inputs; empty: the model has none
	Row   []byte // the inputs in order, as a client sends them: BYTES elements with their lengths
	Batch int    // rows of the batch, at least 1
	Runs  int    // number of runs, at least 1
}

// Warmup is one model_warmup entry.
type Warmup struct {
	Name   string
	Batch  int // batch_size; 0: left out
	Runs   int // count; 0: left out
	Inputs []WarmupInput
}

// WarmupInput is the source of one input's content.
type WarmupInput struct {
	Name     string
	Datatype model.Datatype
	Shape    []int64
	Random   bool   // random_data instead of zero_data
	File     string // input_data_file, below the model's directory warmup; "": none
	at       value  // for errors
}

const (
	warmupsMax     = 64
	warmupRunsMax  = 1000
	warmupBytesMax = 64 << 20 // a data file
)

func (d *decoder) readWarmup(out *[]Warmup) func(value) error {
	return func(v value) error {
		if len(*out) == warmupsMax {
			return d.failAt(v, "model_warmup", "a model may have at most %d", warmupsMax)
		}

		var w Warmup
		err := d.decodeFields(v.sub, "model_warmup", rules{
			"name":       {read: d.readText(&w.Name)},
			"batch_size": {read: d.readInteger(&w.Batch, 0, BatchMaxLimit)},
			"count":      {read: d.readInteger(&w.Runs, 0, warmupRunsMax)},
			"inputs":     {read: d.warmupInput(&w.Inputs), repeated: true},
		}, v)
		*out = append(*out, w)
		return err
	}
}

// warmupInput returns a reader of entries in the map from input names to contents.
func (d *decoder) warmupInput(out *[]WarmupInput) func(value) error {
	return func(v value) error {
		in := WarmupInput{at: value{at: v.at}}

		chosen := 0

		// The content is one of three fields; chosen counts those that are set.
		flag := func(on func()) func(value) error {
			return func(v value) error {
				switch v.text {
				case "true", "True", "t", "1":
					chosen++
					on()
				case "false", "False", "f", "0":
				default:
					return d.failAt(v, "", "want true or false")
				}
				return nil
			}
		}

		content := rules{
			"data_type":   {read: d.readDatatype(&in.Datatype)},
			"dims":        {read: d.readDim(&in.Shape, "model_warmup.inputs.value.dims"), repeated: true},
			"zero_data":   {read: flag(func() {})},
			"random_data": {read: flag(func() { in.Random = true })},
			"input_data_file": {read: func(v value) error {
				chosen++
				return d.fileName(&in.File)(v)
			}},
		}

		err := d.decodeFields(v.sub, "model_warmup.inputs", rules{
			"key":   {read: d.readText(&in.Name)},
			"value": {read: func(v value) error { return d.decodeFields(v.sub, "model_warmup.inputs.value", content, v) }},
		}, v)

		switch {
		case err != nil:
			return err
		case chosen != 1:
			return d.failAt(in.at, "model_warmup.inputs", "%q: want one of zero_data, random_data and input_data_file", in.Name)
		case slices.ContainsFunc(*out, func(o WarmupInput) bool { return o.Name == in.Name }):
			return d.failAt(in.at, "model_warmup.inputs", "%q is there twice", in.Name)
		}
		*out = append(*out, in)
		return nil
	}
}

// checkWarmups compares the samples with the model's inputs.
func (d *decoder) checkWarmups(root *message, c *Config) error {
	for _, w := range c.Warmups {
		if w.Batch > max(c.BatchMax, 1) {
			v, _ := root.findField("model_warmup")
			return d.failAt(value{at: v.at}, "model_warmup.batch_size", "%d is above max_batch_size %d", w.Batch, c.BatchMax)
		}

		// Check now: a sample that does not fit the model would fail at every start, and only then.
		for _, in := range w.Inputs {
			k := slices.IndexFunc(c.Inputs, func(t TensorConfig) bool { return t.Name == in.Name })
			if k < 0 {
				return d.failAt(in.at, "model_warmup.inputs", "%q: the model has no such input", in.Name)
			}
			if t := &c.Inputs[k]; in.Datatype != t.Datatype || !t.Fits(in.Shape) {
				return d.failAt(in.at, "model_warmup.inputs", "%q: %s %v: want the input's data_type and dims, %s %v", in.Name, in.Datatype, in.Shape, t.Datatype, t.Shape)
			}
		}

		if c.lacksInputs(&w) {
			v, _ := root.findField("model_warmup")
			return d.failAt(value{at: v.at}, "model_warmup.inputs", "%q has %d inputs; want all %d of the model", w.Name, len(w.Inputs), len(c.Inputs))
		}
	}
	return nil
}

// lacksInputs reports whether a sample omits a required input.
func (c *Config) lacksInputs(w *Warmup) bool {
	return slices.ContainsFunc(c.Inputs, func(t TensorConfig) bool {
		return !t.Optional && !slices.ContainsFunc(w.Inputs, func(in WarmupInput) bool { return in.Name == t.Name })
	})
}

// readSamples builds the rows of a model's model_warmup entries, with the data files below dir/warmup.
func readSamples(dir string, c *Config) ([]Sample, error) {
	random := rand.New(rand.NewPCG(1, 1)) // the same rows at every start
	var all []Sample

	for _, w := range c.Warmups {
		class, err := c.sampleClass(&w)
		if err != nil {
			return nil, fmt.Errorf("model_warmup %q: %w", w.Name, err)
		}
		s := Sample{Name: w.Name, Class: class, Batch: max(w.Batch, 1), Runs: max(w.Runs, 1)}

		// The row holds the inputs in the model's order, regardless of the sample's order.
		for _, t := range c.Inputs {
			k := slices.IndexFunc(w.Inputs, func(in WarmupInput) bool { return in.Name == t.Name })
			if k < 0 && t.Optional {
				continue
			}
			if k < 0 { // a tensor of a sequence: checkWarmups has found the others
				s.Row = append(s.Row, make([]byte, t.RowBytes())...)
				continue
			}
			in := &w.Inputs[k]
			content, err := in.makeContent(dir, t, random)
			if err != nil {
				return nil, fmt.Errorf("model_warmup %q: input %q: %w", w.Name, t.Name, err)
			}

			s.Row = append(s.Row, content...)
		}
		all = append(all, s)
	}
	return all, nil
}

// makeContent builds one row of an input.
func (in *WarmupInput) makeContent(dir string, t TensorConfig, random *rand.Rand) ([]byte, error) {
	n, size := int(countElements(in.Shape)), t.Datatype.Size()
	switch {
	case in.File != "":
		text, err := readLimited(filepath.Join(dir, "warmup", in.File), warmupBytesMax)
		if err != nil {
			return nil, err
		}
		return text, checkContent(text, n, size)
	case n*max(size, 4) > warmupBytesMax:
		return nil, fmt.Errorf("shape %v of %s: want at most %d bytes", in.Shape, t.Datatype, warmupBytesMax)
	case size == 0:
		return randomTexts(n, in.Random, random), nil
	}

	row := make([]byte, n*size)
	if in.Random {
		fillRandom(row, t.Datatype, random)
	}
	return row, nil
}

// checkContent compares a data file with the size of one row. size is the size of an element, 0 for BYTES.
func checkContent(text []byte, n, size int) error {
	if size > 0 {
		if len(text) != n*size {
			return fmt.Errorf("the file has %d bytes; one row takes %d", len(text), n*size)
		}
		return nil
	}

	found, ok := model.CountTexts(text)
	if !ok {
		return fmt.Errorf("element %d is cut; each must be a 4-byte little-endian length and that many bytes", found)
	}
	if found != n {
		return fmt.Errorf("the file has %d elements; one row takes %d", found, n)
	}
	return nil
}

// randomTexts makes n BYTES elements of digits, or empty ones.
func randomTexts(n int, filled bool, random *rand.Rand) []byte {
	var row []byte
	for range n {
		var digits []byte
		for filled && len(digits) < 4 {
			digits = append(digits, byte('1'+random.IntN(9)))
		}
		row = model.AppendText(row, string(digits))
	}
	return row
}

// fillRandom fills a row with values that every model of the datatype accepts: floats below 1, small integers, and
// booleans.
func fillRandom(row []byte, datatype model.Datatype, random *rand.Rand) {
	size := datatype.Size()

	for at := 0; at < len(row); at += size {
		element := row[at : at+size]
		switch datatype {
		case model.FP32:
			binary.LittleEndian.PutUint32(element, math.Float32bits(random.Float32()))
		case model.FP64:
			binary.LittleEndian.PutUint64(element, math.Float64bits(random.Float64()))
		case model.FP16:
			binary.LittleEndian.PutUint16(element, uint16(0x3800|random.IntN(1<<10))) // in [0.5, 1)
		case model.BF16:
			binary.LittleEndian.PutUint16(element, uint16(0x3f00|random.IntN(1<<7))) // in [0.5, 1)
		default:
			// The first byte of a little-endian integer: 0 or 1 is a valid index and a valid boolean.
			element[0] = byte(random.IntN(2))
		}
	}
}
