package repo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
)

// An early exit is a model with a configuration and no file of its own. It runs the beginning of another model's
// file, its parent's, up to its own head (AdaInf §2.2; docs/decisions/0215). Its versions are the parent's.

// ExitsMax is the largest exit_stage.
const ExitsMax = 16

const (
	// LearnedFile is the file in a version's directory that marks it as written by a learner, with the measured
	// accuracy of its exits.
	LearnedFile     = "learned.json"
	learnedBytesMax = 1 << 16
)

// readExit reads the parameters of an early exit.
func (d *decoder) readExit(c *Config, params map[string]value) error {
	of, named := params["exit_of"]
	stage, staged := params["exit_stage"]
	switch {
	case !named && !staged:
		return nil
	case !named:
		return d.failAt(stage, "parameters.exit_stage", "want exit_of, too: the model that it is an exit of")
	case !staged:
		return d.failAt(of, "parameters.exit_of", "want exit_stage, too: which of the model's exits it is, 1 to %d", ExitsMax)
	case checkName(of.text) != nil || of.text == c.Name:
		return d.failAt(of, "parameters.exit_of", "want the name of another model of this repository")
	}

	n, err := strconv.Atoi(stage.text)
	if err != nil || n < 1 || n > ExitsMax {
		return d.failAt(stage, "parameters.exit_stage", "want 1 to %d", ExitsMax)
	}
	c.ExitOf, c.ExitStage = of.text, n
	return nil
}

// parent is the model whose file a model runs: itself, or for an exit its parent.
type parent struct {
	dir    string
	config *Config
}

// openParent finds the parent of the model in dir and checks that they fit.
func openParent(dir string, c *Config, o Options) (parent, error) {
	if c.ExitOf == "" {
		return parent{dir, c}, nil
	}

	p := parent{dir: filepath.Join(filepath.Dir(dir), c.ExitOf)}
	fail := func(format string, args ...any) (parent, error) {
		return p, fmt.Errorf("parameters.exit_of: %q: %s", c.ExitOf, fmt.Sprintf(format, args...))
	}
	if !isModel(p.dir) {
		return fail("no such model in %s: an exit lies beside the model that it is an exit of", filepath.Dir(dir))
	}

	// Options.Config replaces the exit's configuration, not the parent's.
	o.Config = ""
	var err error
	if p.config, err = readConfig(filepath.Join(p.dir, "config.pbtxt"), o); err != nil {
		return p, fmt.Errorf("parameters.exit_of: %w", err)
	}
	if err := readLabels(p.dir, p.config); err != nil {
		return p, fmt.Errorf("parameters.exit_of: %w", err)
	}

	switch of := p.config; {
	case of.ExitOf != "":
		return fail("it is an exit itself: want the model that has all layers, %q", of.ExitOf)
	case of.Platform != c.Platform:
		return fail("its platform is %s: an exit has the same, not %s", of.Platform, c.Platform)
	case of.Family != c.Family:
		return fail("its family is %q: an exit is of the same, not of %q", of.Family, c.Family)
	case (of.BatchMax > 0) != (c.BatchMax > 0) || c.BatchMax > of.BatchMax:
		return fail("its max_batch_size is %d: an exit has as much or less, not %d", of.BatchMax, c.BatchMax)
	case c.Versions.All || c.Versions.Latest > 0 || len(c.Versions.Specific) > 0:
		return fail("version_policy: an exit's versions are those of the model that it is an exit of")
	case !slices.EqualFunc(of.Inputs, c.Inputs, sameTensor) || !slices.EqualFunc(of.Outputs, c.Outputs, sameTensor):
		return fail("its inputs and outputs are others: an exit takes and answers the same names, data_types and dims")
	}
	return p, nil
}

func sameTensor(a, b TensorConfig) bool {
	return a.Name == b.Name && a.Datatype == b.Datatype && slices.Equal(a.Shape, b.Shape) && slices.Equal(a.graphShape(), b.graphShape())
}

// exitParent returns the directory of the parent of the model in dir; empty if the model is no exit or cannot be
// read.
func exitParent(dir string) string {
	// An exit's own directories hold only profiles, so look into its configuration.
	text, err := readLimited(filepath.Join(dir, "config.pbtxt"), configBytesMax)
	if err != nil || isEnsemble(text) {
		return ""
	}
	c, err := ParseConfig("", text)
	if err != nil || c.ExitOf == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(dir), c.ExitOf)
}

// Learned is the content of LearnedFile.
type Learned struct {
	From int `json:"from"` // the version on which training started
	// ExitGaps are the differences between the whole model's accuracy and that of each exit, on the samples with
	// which they were judged before the version served.
	ExitGaps []float64 `json:"exit_gaps,omitempty"`
}

// readJudged sets the accuracy of an exit of a learnt version, whose trunk differs from the one that the
// configuration describes.
func (m *Model) readJudged(of parent) error {
	path := filepath.Join(of.dir, m.Version, LearnedFile)
	text, err := readLimited(path, learnedBytesMax)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // not a learnt version: the configuration's accuracy holds
	}

	var l Learned
	if err == nil {
		err = json.Unmarshal(text, &l)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(l.ExitGaps) < m.ExitStage {
		return fmt.Errorf("%s: exit_gaps: %d of them, none for exit %d: it was not judged after its model learnt", path, len(l.ExitGaps), m.ExitStage)
	}

	// Apply the judged gap to the configuration's accuracy, the scale of the family's other variants.
	if gap := l.ExitGaps[m.ExitStage-1]; of.config.Accuracy > 0 && gap >= -1 && gap <= 1 {
		m.Accuracy = min(1, max(1e-4, of.config.Accuracy-gap))
	}
	return nil
}

// ExitsOf returns the names of a model's exits in the repository at dir, by stage.
func ExitsOf(dir, name string) (exits []string, err error) {
	names, err := Names([]string{dir})
	if err != nil {
		return nil, err
	}

	stages := map[string]int{}
	for _, other := range names {
		if exitParent(filepath.Join(dir, other)) != filepath.Join(dir, name) {
			continue
		}

		// An exit with a broken configuration is reported when it is opened itself.
		c, err := readConfig(filepath.Join(dir, other, "config.pbtxt"), Options{})
		if err == nil {
			stages[other] = c.ExitStage
			exits = append(exits, other)
		}
	}
	slices.SortFunc(exits, func(a, b string) int { return stages[a] - stages[b] })
	return exits, nil
}
