package deploy

import (
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

// Models are the models that LoadModels names.
func (r Repository) Models() (names []string) {
	for name := range strings.SplitSeq(r.LoadModels, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}
