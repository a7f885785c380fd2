package learn

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"downbeat.dev/backend/train"
	"downbeat.dev/core/repo"
	"downbeat.dev/core/wire"
)

// TrainableModel is the content of training.json in a model's directory of the repository. It declares that the model
// may be trained while it serves, and how its network is built. training.samples beside it holds samples of the
// model's training data.
type TrainableModel struct {
	Height  int64       `json:"height"` // of the images, pixels
	Width   int64       `json:"width"`
	Classes int64       `json:"classes"`
	Layers  []LayerSpec `json:"layers"`
	Exits   []ExitSpec  `json:"exits,omitempty"` // all early exits of the model's file, by stage
	// Every keeps one in this many inputs; inputs without a true class only if Teacher is set. 0: all.
	Every   int     `json:"every,omitempty"`
	Teacher string  `json:"teacher,omitempty"`  // a model of the same repository that labels inputs, such as the -l variant
	Batch   int     `json:"batch,omitempty"`    // of a training step; 0: 16
	Period  float64 `json:"period_s,omitempty"` // between two starts of a comparison with the reference; 0: 50
	Rate    float64 `json:"rate,omitempty"`     // learning rate; 0: 0.002
	Mirror  bool    `json:"mirror,omitempty"`   // an image's mirror image has the same class
}

// ExitSpec is an early exit: a head behind some layers of the network.
type ExitSpec struct {
	After  int64       `json:"after"` // number of layers of the network before the head, from 1 to all but one
	Layers []LayerSpec `json:"layers"`
}

// LayerSpec is one layer: exactly one of the fields is set.
type LayerSpec struct {
	Conv     *ConvSpec   `json:"conv,omitempty"`
	Residual []LayerSpec `json:"residual,omitempty"`
	Flatten  bool        `json:"flatten,omitempty"`
	Dense    *DenseSpec  `json:"dense,omitempty"`
}

// ConvSpec is a convolution over K×K pixels.
type ConvSpec struct {
	Out    int64 `json:"out"`
	K      int64 `json:"kernel"`
	Stride int64 `json:"stride"`
	Linear bool  `json:"linear,omitempty"` // no rectifier behind it
}

// DenseSpec is a fully connected layer.
type DenseSpec struct {
	Out    int64 `json:"out"`
	Linear bool  `json:"linear,omitempty"`
}

const (
	trainingFile = "training.json"
	samplesFile  = "training.samples"
	samplesMost  = 256 << 20 // bytes
)

// DescribeNet returns the TrainableModel of a classifier's network.
func DescribeNet(net train.Net) (TrainableModel, error) {
	head, ok := net.Head.(train.Classes)
	if !ok {
		return TrainableModel{}, fmt.Errorf("net %s: only classifiers are trained while they serve", net.Name)
	}
	layers, err := describeLayers(net.Body)
	about := TrainableModel{Height: net.H, Width: net.W, Classes: head.N, Layers: layers}
	for _, e := range net.Exits {
		head, failed := describeLayers(e.Body)
		about.Exits = append(about.Exits, ExitSpec{int64(e.After), head})
		err = errors.Join(err, failed)
	}
	return about, err
}

func describeLayers(body []train.Layer) (all []LayerSpec, err error) {
	for _, l := range body {
		var s LayerSpec

		// Describe only the structure: the weights are in the model's file.
		switch l := l.(type) {
		case *train.Conv:
			s.Conv = &ConvSpec{l.Out, l.K, l.Stride, l.Linear}

		// A residual block contains layers.
		case *train.Residual:
			if s.Residual, err = describeLayers(l.Body); err != nil {
				return nil, err
			}
		case *train.Flatten:
			s.Flatten = true
		case *train.Dense:
			s.Dense = &DenseSpec{l.Out, l.Linear}
		default:
			return nil, fmt.Errorf("layer %T: not known", l)
		}
		all = append(all, s)
	}

	return all, nil
}

// Net builds the network of a model of that name.
func (t *TrainableModel) Net(name string) (train.Net, error) {
	body, err := buildLayers(t.Layers)
	switch {
	case err != nil:
		return train.Net{}, err
	case t.Height < 1 || t.Width < 1 || t.Height > 4096 || t.Width > 4096:
		return train.Net{}, fmt.Errorf("height, width: %d, %d: want 1 to 4096", t.Height, t.Width)
	case t.Classes < 2 || t.Classes > 1<<16:
		return train.Net{}, fmt.Errorf("classes: %d: want 2 to %d", t.Classes, 1<<16)
	case len(body) == 0:
		return train.Net{}, errors.New("layers: none, want one at least")
	}

	net := train.Net{Name: name, H: t.Height, W: t.Width, Body: body, Head: train.Classes{N: t.Classes}}
	for i, s := range t.Exits {
		head, err := buildLayers(s.Layers)
		if err != nil {
			return train.Net{}, fmt.Errorf("exits %d: %w", i, err)
		}
		net.Exits = append(net.Exits, train.Exit{After: int(s.After), Body: head})
	}

	return net, nil
}

func buildLayers(all []LayerSpec) (body []train.Layer, err error) {
	for i, s := range all {
		switch {
		// A layer without a size could be built but would fail when run.
		case s.Conv != nil && s.Conv.Out > 0 && s.Conv.K > 0 && s.Conv.Stride > 0:
			body = append(body, &train.Conv{Out: s.Conv.Out, K: s.Conv.K, Stride: s.Conv.Stride, Linear: s.Conv.Linear})
		case len(s.Residual) > 0:
			inner, err := buildLayers(s.Residual)
			if err != nil {
				return nil, err
			}
			body = append(body, &train.Residual{Body: inner})

		// Flatten and dense layers contain no other layers.
		case s.Flatten:
			body = append(body, &train.Flatten{})
		case s.Dense != nil && s.Dense.Out > 0:
			body = append(body, &train.Dense{Out: s.Dense.Out, Linear: s.Dense.Linear})
		default:
			return nil, fmt.Errorf("layer %d: want a conv with out, kernel and stride above 0, a residual, a flatten or a dense with out above 0", i)
		}
	}

	return body, nil
}

// ReadTraining reads a model's directory. declared is false if it declares no training.
func ReadTraining(dir string) (t TrainableModel, initial []Sample, declared bool, err error) {
	text, err := os.ReadFile(filepath.Join(dir, trainingFile))
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil, false, nil
	}

	if err == nil {
		err = json.Unmarshal(text, &t)
	}

	if err != nil {
		return t, nil, true, fmt.Errorf("%s: %w", filepath.Join(dir, trainingFile), err)
	}

	// The default batch of 16 keeps a step of a small net within a few milliseconds, the limit of a step.
	if t.Batch == 0 {
		t.Batch = 16
	}

	packed, err := readSamples(filepath.Join(dir, samplesFile))
	if err == nil {
		initial, err = t.unpackSamples(packed)
	}

	if err != nil {
		return t, nil, true, fmt.Errorf("%s: %w", filepath.Join(dir, samplesFile), err)
	}

	return t, initial, true, nil
}

func readSamples(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && info.Size() > samplesMost {
		err = fmt.Errorf("%d bytes, want at most %d", info.Size(), samplesMost)
	}

	if err != nil {
		return nil, err
	}

	return os.ReadFile(path)
}

// WriteTraining declares in a model's directory that the model may be trained. It writes the samples first, since a
// declaration without samples is refused.
func WriteTraining(dir string, t TrainableModel, initial []Sample) error {
	var packed []byte
	for _, s := range initial {
		packed = append(binary.LittleEndian.AppendUint32(packed, uint32(s.Class)), s.Input...)
	}
	text, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return err
	}

	if err := repo.WriteFile(filepath.Join(dir, samplesFile), packed); err != nil {
		return err
	}

	return repo.WriteFile(filepath.Join(dir, trainingFile), append(text, '\n'))
}

// unpackSamples parses samples: for each, its class as a little-endian u32, then the image.
func (t *TrainableModel) unpackSamples(packed []byte) (all []Sample, err error) {
	return t.unpackHeaded(packed, wire.LessonHead)
}

// unpackHeaded is unpackSamples with heads of another length, which begin with the class.
func (t *TrainableModel) unpackHeaded(packed []byte, head int) (all []Sample, err error) {
	size := t.imageBytes()

	// A partial sample would shift all following ones.
	if len(packed) == 0 || len(packed)%(head+size) != 0 {
		return nil, fmt.Errorf("%d bytes: want samples of %d bytes, a class and an image of %d by %d pixels", len(packed), head+size, t.Height, t.Width)
	}

	for ; len(packed) > 0; packed = packed[head+size:] {
		class := binary.LittleEndian.Uint32(packed)
		if int64(class) >= t.Classes {
			return nil, fmt.Errorf("sample %d: class %d, want 0 to %d", len(all), class, t.Classes-1)
		}
		all = append(all, Sample{Input: packed[head : head+size : head+size], Class: int(class)})
	}

	return all, nil
}

func (t *TrainableModel) imageBytes() int { return int(t.Height * t.Width * 3) }

// unpackLesson is unpackSamples of samples that a version has answered, unless its name is empty: their heads say how
// (wire.LessonHead). It changes packed.
func (t *TrainableModel) unpackLesson(version string, packed []byte) (all []Sample, err error) {
	number, err := strconv.Atoi(version)
	if err != nil {
		return t.unpackSamples(packed) // no version, or one that no learner has published
	}

	var served []Served
	head := wire.HeadOf(len(packed), t.imageBytes())
	for at := 0; at+head <= len(packed); at += head + t.imageBytes() {
		served = append(served, readServed(number, packed[at:at+head]))
		packed[at+2], packed[at+3] = 0, 0
	}

	all, err = t.unpackHeaded(packed, head)
	for i := range all {
		all[i].Served = served[i]
	}
	return all, err
}

// readServed returns a version's answer from the head of a sample.
func readServed(version int, head []byte) (s Served) {
	answered := binary.LittleEndian.Uint16(head[2:])
	if answered == 0 {
		return s
	}

	s = Served{Version: version, Class: int(answered) - 1}
	if len(head) == wire.SureHead {
		s.Sure = wire.UnpackProbability(binary.LittleEndian.Uint16(head[wire.LessonHead:]))
	}
	return s
}

// scoresOutput is the output of the trained models' graphs with a score for each class (backend/train).
const scoresOutput = "scores"

// served returns the answer to a request, and its scores; none if it has not a score for each class.
func (t *TrainableModel) served(version string, output []byte) (s Served, scores []float32) {
	number, err := strconv.Atoi(version)
	if err != nil || int64(len(output)) != 4*t.Classes {
		return s, nil
	}

	scores = make([]float32, t.Classes)
	for i := range scores {
		scores[i] = math.Float32frombits(binary.LittleEndian.Uint32(output[4*i:]))
	}
	return Served{Version: number, Class: bestClass(scores)}, scores
}

// comparesEvery returns the time between two starts of a comparison.
func (t *TrainableModel) comparesEvery() time.Duration {
	return time.Duration(t.Period * float64(time.Second))
}

// ListTrainable returns the trainable models of a repository.
func ListTrainable(repository string) (all []string, err error) {
	found, err := filepath.Glob(filepath.Join(repository, "*", trainingFile))
	for _, path := range found {
		all = append(all, filepath.Base(filepath.Dir(path)))
	}

	return all, err
}
