package deploy

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Repository is the section of which models of the repository a backend loads, and when.
type Repository struct {
	// backend: none (all at start), explicit (what clients ask for) or poll (all, and what changes in the repository)
	ModelControl string `yaml:"model_control"`
	// backend, with explicit: the models to load at start, separated by commas; * stands for all
	LoadModels string        `yaml:"load_models"`
	PollEvery  time.Duration `yaml:"poll_every"` // backend, with poll: how often the repository is looked at
	StateDir   string        `yaml:"state_dir"`  // backend, with explicit: keeps what clients have loaded and unloaded for the next start
}

// DefaultRepository is the section as it is without a file.
func DefaultRepository() Repository {
	return Repository{ModelControl: "none", PollEvery: 15 * time.Second}
}

// repositoryReaders is readers for the section.
var repositoryReaders = map[string][]string{
	"model-control": {"serve", "backend"},
	"load-models":   {"serve", "backend"},
	"poll-every":    {"serve", "backend"},
	"state-dir":     {"serve", "backend"},
}

var modelControls = []string{"none", "explicit", "poll"}

// registerFlags registers a flag for each knob of the section.
func (r *Repository) registerFlags(fs *flag.FlagSet) {
	fs.StringVar(&r.ModelControl, "model-control", r.ModelControl, "`mode`: none (all models at start), explicit (what clients load and unload) or poll (what changes in the repository)")
	fs.StringVar(&r.LoadModels, "load-models", r.LoadModels, "with -model-control explicit: `models` to load at start, separated by commas; * stands for all")
	fs.DurationVar(&r.PollEvery, "poll-every", r.PollEvery, "with -model-control poll: how often the repository is looked at")
	fs.StringVar(&r.StateDir, "state-dir", r.StateDir, "with -model-control explicit: a `directory` that keeps what clients have loaded and unloaded for the next start")
}

// checkFields returns what is wrong with the section.
func (r Repository) checkFields() (errs []error) {
	if !slices.Contains(modelControls, r.ModelControl) {
		errs = append(errs, fmt.Errorf("config: repository.model_control: %.20q is not allowed: want one of %s", r.ModelControl, strings.Join(modelControls, ", ")))
	}

	if r.LoadModels != "" && r.ModelControl != "explicit" {
		errs = append(errs, fmt.Errorf("config: repository.load_models: %.40q is not allowed: want none, or model_control explicit", r.LoadModels))
	}

	if r.StateDir != "" && r.ModelControl != "explicit" {
		errs = append(errs, fmt.Errorf("config: repository.state_dir: %.40q is not allowed: want none, or model_control explicit", r.StateDir))
	}

	if r.PollEvery < 100*time.Millisecond || r.PollEvery > 24*time.Hour {
		errs = append(errs, fmt.Errorf("config: repository.poll_every: %v is not allowed: want 100ms to 24h", r.PollEvery))
	}
	return errs
}

// Models are the models that LoadModels names.
func (r Repository) Models() (names []string) {
	for name := range strings.SplitSeq(r.LoadModels, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}
