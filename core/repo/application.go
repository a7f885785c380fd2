package repo

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"downbeat.dev/core/app"
	"downbeat.dev/core/profile"
)

// openApplication reads the application in a directory; found is false if the directory has a model or nothing.
func openApplication(dir, name string) (a app.Application, found bool, err error) {
	// Report an invalid name once, where the model is read.
	if err := checkName(name); err != nil {
		return a, false, nil // the model's error reports it
	}

	// An application.yaml takes precedence over a config.pbtxt.
	path := filepath.Join(dir, applicationFile)
	text, err := readLimited(path, applicationBytesMax)
	if err == nil {
		a, err = ParseApplication(path, name, text)
		return a, true, err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return a, true, err
	}

	path = filepath.Join(dir, "config.pbtxt")
	if text, err = readLimited(path, configBytesMax); err != nil || !isEnsemble(text) {
		return a, false, nil
	}
	a, err = ParseEnsemble(path, name, text)
	return a, true, err
}

// Graphs checks the applications against the models. It leaves out applications that do not fit and returns the
// reasons.
func (r *Repository) Graphs() (graphs []*app.Graph, refused []ModelError) {
	for _, a := range r.Applications {
		g, err := app.Resolve(a, r.signatureOf)
		// One application that does not fit must not take the others out of service.
		if err != nil {
			refused = append(refused, ModelError{Model: a.Name, Err: err})
			continue
		}
		graphs = append(graphs, g)
	}
	return graphs, refused
}

// Profile returns ℓ(b) of a model, or of a family's fastest variant, on the host on which a single request is
// fastest; nil if none was measured.
func (r *Repository) Profile(name, version string) *profile.Profile {
	return r.ProfileAt(name, version, 0)
}

// ProfileAt is Profile restricted to a family's variants with an accuracy of at least floor, 0 to 1. It returns nil
// also if no variant reaches the floor. The floor does not apply to a single model.
func (r *Repository) ProfileAt(name, version string, floor float64) *profile.Profile {
	// A model's own name takes precedence over a family of the same name.
	members := r.membersOf(name)
	if m, err := r.Find(name, version); err == nil {
		members, floor = []*Model{m}, 0
	}

	var best *profile.Profile
	for _, m := range members {
		if cmp.Or(m.Accuracy, m.Config.Accuracy) < floor {
			continue
		}
		tables := [][]time.Duration{m.Table()}
		for _, p := range m.Profiles {
			tables = append(tables, p.TableNS)
		}
		for _, t := range tables {
			p, err := profile.New(t)
			if err == nil && (best == nil || p.Exec(1) < best.Exec(1)) {
				best = p
			}
		}
	}
	return best
}

// signatureOf returns the signature of a model or a family for an application.
func (r *Repository) signatureOf(name, version string) (app.Signature, error) {
	members := r.membersOf(name)
	if m, err := r.Find(name, version); err == nil {
		members = []*Model{m}
	} else if len(members) == 0 || version != "" {
		return app.Signature{}, err
	}

	if members[0].HasClasses() {
		return app.Signature{}, fmt.Errorf("model %q: %w", name, errClasses)
	}
	if members[0].Config.Sequence.HasID() {
		return app.Signature{}, fmt.Errorf("model %q: CONTROL_SEQUENCE_CORRID: want a model that does without a sequence's number: those of an application's sessions have none", name)
	}

	// Use the first member's tensors for the family: every variant must answer in the same form.
	s := app.Signature{Inputs: members[0].Inputs, Outputs: members[0].Outputs, SLO: members[0].SLO, Sequence: members[0].Config.Sequence != nil}

	// An application does not supply the tensors that sequence_batching adds.
	in, out := members[0].Config.Sequence.Hidden()
	s.Inputs, s.Outputs = s.Inputs[:len(s.Inputs)-in], s.Outputs[:len(s.Outputs)-out]
	for i, m := range members {
		if least := m.leastTime(); i == 0 || least < s.Least {
			s.Least = least
		}
	}
	return s, nil
}

// membersOf returns the models of a family.
func (r *Repository) membersOf(family string) (all []*Model) {
	for i := range r.Models {
		if m := &r.Models[i]; family != "" && m.Config.Family == family {
			all = append(all, m)
		}
	}
	return all
}

// leastTime returns the time of a single request on the fastest measured host; 0 if none was measured.
func (m *Model) leastTime() time.Duration {
	// An emulated model's configuration states its time on any host.
	if m.Platform == PlatformEmulated {
		return m.Config.Emulated.Exec(1)
	}

	least := time.Duration(0)
	for _, p := range m.Profiles {
		if t := p.TableNS[0]; least == 0 || t < least {
			least = t
		}
	}
	return least
}

// applicationNames returns the names of all applications.
func (r *Repository) applicationNames() (names []string) {
	for i := range r.Applications {
		names = append(names, r.Applications[i].Name)
	}
	return names
}

// isEnsemble reports whether a configuration is an ensemble's, as far as an invalid text shows.
func isEnsemble(text []byte) bool {
	root, err := parseText("", text)
	// A text that cannot be parsed counts as a model's, whose reader reports the place of the error.
	if err != nil {
		return false
	}
	platform, _ := root.findField("platform")
	_, scheduled := root.findField("ensemble_scheduling")
	return scheduled || strings.EqualFold(platform.text, platformEnsemble)
}
