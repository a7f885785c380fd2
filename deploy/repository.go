package deploy

import (
	"strings"
	"time"
)

// Repository is the section of the models that a backend loads, and when.
type Repository struct {
	// backend: none (all at start), explicit (on clients' request) or poll (all, and changes in the repository)
	ModelControl string `yaml:"model_control"`
	// backend, with explicit: the models to load at start, separated by commas; * means all
	LoadModels string        `yaml:"load_models"`
	PollEvery  time.Duration `yaml:"poll_every"` // backend, with poll: interval between checks of the repository
	StateDir   string        `yaml:"state_dir"`  // backend, with explicit: directory that keeps the set of loaded models across restarts
}

// Models returns the models that LoadModels names.
func (r Repository) Models() (names []string) {
	for name := range strings.SplitSeq(r.LoadModels, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}
