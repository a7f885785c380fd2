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

// Repository is the content of a repository as read. It is immutable, except for Model.SetProfile.
type Repository struct {
	Dir    string
	Models []Model // by name, then by version, oldest first
	Errors []ModelError
	// Applications are the applications and ensembles of the repository, by name. Graphs joins them with the models.
	Applications []app.Application
}

// ModelError is the reason why a model was left out.
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
	File       []byte // the contents of ONNXPath, for a load by whoever has them; nil: read them
	VersionDir string // <dir>/<model>/<version>; "" for an emulated model without one
	Profiles   []Profile
	BytesMax   int      // space for a row's BYTES elements with their lengths; 0: DefaultBytesMax
	Samples    []Sample // of model_warmup, for warm-up and measurements
	Config     *Config  // the whole configuration, shared between versions
	Accuracy   float64  // Config's; for an exit of a learnt version, the judged one; 0: unknown
	ExitStage  int      // the number of the exit in the model in ONNXPath, from 1; 0: that model itself
	Stamp      Stamp    // of its files when it was read
	Whole      *Model   // the model of which this is a shape class; nil: no shape class
	Standard   bool     // the class stands for Whole itself: clients see Whole's description
}

// Table returns an emulated model's ℓ(1)…ℓ(BatchMax) in ns; nil for a real model.
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

// GraphInput returns the graph's shape of Inputs[i], without the batch dimension.
func (m *Model) GraphInput(i int) []int64 { return m.Config.Inputs[i].graphShape() }

// GraphOutput returns the graph's shape of Outputs[i], without the batch dimension.
func (m *Model) GraphOutput(i int) []int64 { return m.Config.Outputs[i].graphShape() }

func (t TensorConfig) graphShape() []int64 {
	if t.Reshape != nil {
		return t.Reshape
	}
	return t.Shape
}

// Info describes m to frontends. The scheduler sets ID and Ready.
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

// SameTensors reports whether m and o have the same inputs and outputs, for clients and for the graph.
func (m *Model) SameTensors(o *Model) bool {
	same := func(x, y model.Tensor) bool {
		return x.Name == y.Name && x.Datatype == y.Datatype && slices.Equal(x.Shape, y.Shape)
	}
	return m.Platform == o.Platform && m.Batched == o.Batched && slices.EqualFunc(m.Inputs, o.Inputs, same) && slices.EqualFunc(m.Outputs, o.Outputs, same)
}

// SameSettings reports whether m and o have the same configuration, including class names.
func (m *Model) SameSettings(o *Model) bool {
	switch {
	case m.Config == nil || o.Config == nil:
		return m.Config == o.Config
	case m.Config.text != o.Config.text:
		return false
	}
	return slices.EqualFunc(m.Outputs, o.Outputs, func(x, y model.Tensor) bool { return slices.Equal(x.Labels, y.Labels) })
}

// Open reads the repository in dir, whose models must be described in full. It fails only if dir itself cannot be
// read; errors of single models are in Errors.
func Open(dir string) (*Repository, error) { return OpenWith(dir, Options{}) }

// OpenWith is Open with options.
func OpenWith(dir string, o Options) (*Repository, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open model repository: %w", err)
	}

	r := &Repository{Dir: dir}
	for _, e := range entries {
		name, path := listedName(e), filepath.Join(dir, e.Name())
		if strings.HasPrefix(name, ".") || !isModel(path) {
			continue // something else, such as test data
		}

		// Count bad models, too: a directory given by mistake may hold any number of directories.
		if len(r.Models)+len(r.Errors)+len(r.Applications) >= modelsMax {
			return nil, fmt.Errorf("open model repository: %s has more than %d models", dir, modelsMax)
		}

		a, found, err := openApplication(path, name)
		if err != nil {
			r.Errors = append(r.Errors, ModelError{Model: name, Err: err})
			continue
		}
		if found {
			r.Applications = append(r.Applications, a)
			continue
		}

		models, err := openModel(path, name, o)
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
			// Versions are sorted oldest first, so the last match is the newest.
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

	// Verify the checksums before reading labels, samples and versions.
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

// readConfig reads a config.pbtxt. If it is missing and the options allow it, readConfig uses the graph's
// description.
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

	// With a graph, a missing configuration is no error, but an unreadable one is.
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return parseConfig(path, text, func(c *Config, batchSaid bool) error { return c.completeFromFile(filepath.Dir(path), batchSaid, o) })
}

// listedName returns the name under which a directory is listed: as it is, if it is UTF-8. Lists of models go into
// messages and metrics, which take no other texts; a model cannot have such a name.
func listedName(e fs.DirEntry) string { return strings.ToValidUTF8(e.Name(), "\uFFFD") }

// checkName restricts names to characters that are safe in URLs, metrics and paths.
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
