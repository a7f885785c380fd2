package repo

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"downbeat.dev/core/app"
	"downbeat.dev/core/model"
)

const (
	modelsMax     = 4096    // models of a repository
	labelBytesMax = 1 << 20 // a label file
	nameMax       = 128     // bytes of a model's name
)

// Repository is what Open found. Immutable, except for Model.SetProfile.
type Repository struct {
	Dir    string
	Models []Model // by name, then by version, oldest first
	Errors []ModelError
	// Applications are what directories with an application.yaml or an ensemble hold, by name. Graphs joins them with the models.
	Applications []app.Application
}

// ModelError is a model that was left out and why.
type ModelError struct {
	Model string
	Err   error
}

// Error reads "model detector: …".
func (e ModelError) Error() string { return "model " + e.Model + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e ModelError) Unwrap() error { return e.Err }

// Model is one servable version of a model.
type Model struct {
	Name       string
	Version    string // a positive integer in decimal
	Platform   string // PlatformONNX or PlatformEmulated
	SLO        time.Duration
	BatchMax   int  // at least 1
	Batched    bool // the graph's tensors have a leading batch dimension; if not, BatchMax is 1
	Inputs     []model.Tensor
	Outputs    []model.Tensor
	ONNXPath   string // "" for an emulated model
	VersionDir string // <dir>/<model>/<version>; "" for an emulated model without one
	Profiles   []Profile
	BytesMax   int      // room for a row's BYTES elements, with their lengths; 0: DefaultBytesMax
	Samples    []Sample // of model_warmup, to warm up and to measure with
	Config     *Config  // all that was read, shared between versions
	Accuracy   float64  // Config's, or of an exit of a learnt version what it was judged to be; 0: not known
	ExitStage  int      // which exit it is of the model that ONNXPath holds, from 1; 0: that model itself
	Stamp      Stamp    // of its files when it was read
	Whole      *Model   // the model of which this is a shape class; nil: it is none
	Standard   bool     // the class stands for Whole itself: what clients are told is Whole's
}

// Table returns an emulated model's ℓ(1)…ℓ(BatchMax) in ns, nil for a real one.
func (m *Model) Table() []time.Duration {
	if m.Platform != PlatformEmulated {
		return nil
	}

	t := make([]time.Duration, m.BatchMax)
	for i := range t {
		t[i] = m.Config.Emulated.Exec(i + 1)
	}
	return t
}

// GraphInput returns the shape that the graph wants for Inputs[i], without the batch dimension.
func (m *Model) GraphInput(i int) []int64 { return m.Config.Inputs[i].graphShape() }

// GraphOutput returns the shape that the graph yields for Outputs[i], without the batch dimension.
func (m *Model) GraphOutput(i int) []int64 { return m.Config.Outputs[i].graphShape() }

func (t TensorConfig) graphShape() []int64 {
	if t.Reshape != nil {
		return t.Reshape
	}
	return t.Shape
}

// Info describes m to frontends. ID and Ready are the scheduler's to fill in.
func (m *Model) Info() model.Info {
	if m.Standard {
		return m.Whole.Info()
	}

	i := model.Info{Name: m.Name, Version: m.Version, SLO: int64(m.SLO), BatchMax: uint32(m.BatchMax),
		Inputs: m.Inputs, Outputs: m.Outputs, Platform: m.Platform, Unbatched: !m.Batched, SLOBinds: m.Config.SLOBinds, Priority: m.Config.Batching.Priority(),
		QueueMax: uint32(m.Config.Batching.QueueMax), Config: m.Config.wireText(),
		Family: m.Config.Family, Variant: m.Config.Variant, Accuracy: cmp.Or(m.Accuracy, m.Config.Accuracy), Sequence: m.Config.Sequence, ExitOf: m.Config.ExitOf}
	if m.Whole == nil {
		i.Optional = m.Config.info().Optional
	}
	return i
}

// SameTensors tells whether clients and graph see the inputs and outputs of o as those of m.
func (m *Model) SameTensors(o *Model) bool {
	same := func(x, y model.Tensor) bool {
		return x.Name == y.Name && x.Datatype == y.Datatype && slices.Equal(x.Shape, y.Shape)
	}
	return m.Platform == o.Platform && m.Batched == o.Batched && slices.EqualFunc(m.Inputs, o.Inputs, same) && slices.EqualFunc(m.Outputs, o.Outputs, same)
}

// SameSettings tells whether the configurations of m and o say the same, the class names among it.
func (m *Model) SameSettings(o *Model) bool {
	switch {
	case m.Config == nil || o.Config == nil:
		return m.Config == o.Config
	case m.Config.text != o.Config.text:
		return false
	}
	return slices.EqualFunc(m.Outputs, o.Outputs, func(x, y model.Tensor) bool { return slices.Equal(x.Labels, y.Labels) })
}

// Open reads the repository in dir, whose models are described in full. It fails only if dir itself cannot be read; what
// is wrong with single models is in Errors.
func Open(dir string) (*Repository, error) { return OpenWith(dir, Options{}) }

// OpenWith is Open with options.
func OpenWith(dir string, o Options) (*Repository, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open model repository: %w", err)
	}

	r := &Repository{Dir: dir}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || !isModel(filepath.Join(dir, name)) {
			continue // something else, such as test data
		}

		// Good and bad ones count alike: a directory that was given by mistake may hold any number of others.
		if len(r.Models)+len(r.Errors)+len(r.Applications) >= modelsMax {
			return nil, fmt.Errorf("open model repository: %s has more than %d models", dir, modelsMax)
		}

		a, found, err := openApplication(filepath.Join(dir, name), name)
		if err != nil {
			r.Errors = append(r.Errors, ModelError{Model: name, Err: err})
			continue
		}
		if found {
			r.Applications = append(r.Applications, a)
			continue
		}

		models, err := openModel(filepath.Join(dir, name), name, o)
		if err != nil {
			r.Errors = append(r.Errors, ModelError{Model: name, Err: err})
			continue
		}
		r.Models = append(r.Models, models...)
	}
	return r, nil
}

// Find returns a model by name and version; an empty version means the newest.
func (r *Repository) Find(name, version string) (*Model, error) {
	var found *Model
	var versions []string

	for i := range r.Models {
		if m := &r.Models[i]; m.Name == name {
			versions = append(versions, m.Version)
			// Versions stand oldest first, so the last match is the newest.
			if version == "" || m.Version == version {
				found = m
			}
		}
	}

	switch {
	case found != nil:
		return found, nil
	case len(versions) > 0:
		return nil, fmt.Errorf("model %q has no version %q; it has %s", name, shortenText(version), strings.Join(versions, ", "))
	}
	return nil, fmt.Errorf("no model %q; there are %s", shortenText(name), strings.Join(r.Names(), ", "))
}

// Names returns the models' names, each once, sorted.
func (r *Repository) Names() []string {
	var names []string
	for _, m := range r.Models {
		names = append(names, m.Name)
	}
	return slices.Compact(names)
}

func openModel(dir, name string, o Options) ([]Model, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}

	path := filepath.Join(dir, "config.pbtxt")
	c, err := readConfig(path, o)
	if err != nil {
		return nil, err
	}
	if c.Name != "" && c.Name != name {
		return nil, fmt.Errorf("%s: name: %q: want the directory's name %q, or none", path, c.Name, name)
	}

	// Labels, samples and versions are read only once the checksums hold.
	if err := checkSums(dir, c.Agents); err != nil {
		return nil, err
	}
	if err := readLabels(dir, c); err != nil {
		return nil, err
	}

	if err := c.readInitialStates(dir); err != nil {
		return nil, err
	}
	samples, err := readSamples(dir, c)
	if err != nil {
		return nil, err
	}
	of, err := openParent(dir, c, o)
	if err != nil {
		return nil, err
	}
	versions, err := chooseVersions(of.dir, of.config)
	if err != nil {
		return nil, err
	}

	var models []Model
	for _, v := range versions {
		m, err := openVersion(dir, name, v, c, of)
		if err != nil {
			return nil, err
		}
		m.Samples = samples
		models = append(models, m)
	}
	return models, nil
}

// readConfig reads a config.pbtxt, or what the graph says where there is none and the options allow it.
func readConfig(path string, o Options) (*Config, error) {
	text, err := readLimited(path, configBytesMax)
	if o.Config != "" {
		text, err = []byte(o.Config), nil
	}

	if o.Graph == nil {
		if err != nil {
			return nil, err
		}
		return ParseConfig(path, text)
	}

	// With a graph to ask, a missing configuration is no error; one that cannot be read is.
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return parseConfig(path, text, func(c *Config, batchSaid bool) error { return c.completeFromFile(filepath.Dir(path), batchSaid, o) })
}

// checkName keeps names to what is safe in URLs, metrics and paths.
func checkName(name string) error {
	bad := strings.IndexFunc(name, func(r rune) bool {
		return !(r < 0x80 && (isNameByte(byte(r)) || r == '-' || r == '.'))
	})

	if name == "" || len(name) > nameMax || bad >= 0 {
		return fmt.Errorf("name: %q: want 1 to %d letters, digits, '-', '_' or '.'", shortenText(name), nameMax)
	}
	return nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
