//go:build linux

package downbeat

import (
	"errors"
	"io/fs"
	"strings"
	"time"

	"downbeat.dev/backend/onnx"
	dag "downbeat.dev/core/app"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
	"downbeat.dev/frontend/app"
)

// What budgets are made for, where nobody has said how many frames come: a camera or so.
const (
	applicationRate = 10
	applicationHop  = 500 * time.Microsecond
)

// openApplications makes the applications of the model repository ready; it needs the client. An application that
// cannot run is left out, and logged. Nil: there is none.
func (s *System) openApplications() *app.Set {
	o := repo.Options{Graph: onnx.Signature}
	if s.config.Protocol.StrictModels {
		o.Graph = nil
	}
	r, err := repo.OpenAll(strings.Split(s.config.Models, ","), o)
	if err != nil {
		// A gateway alone has no repository, and needs none.
		if s.backend != nil || !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("no applications", "err", err)
		}
		return nil
	}

	graphs, refused := r.Graphs()
	for _, e := range refused {
		s.log.Warn("an application is left out", "application", e.Model, "err", e.Err)
	}
	var all []*app.App
	for _, g := range graphs {
		a, err := app.New(s.client, g, app.Options{Hooks: s.config.Hooks, Offsets: s.offsets(r, g)})
		if err != nil {
			s.log.Warn("an application is left out", "application", g.Name, "err", err)
			continue
		}
		s.onClose(func() error { a.Close(); return nil })
		all = append(all, a)
	}
	if len(all) == 0 {
		return nil
	}

	set, err := app.NewSet(all...)
	if err != nil {
		s.log.Warn("no applications", "err", err)
		return nil
	}
	return set
}

// offsets divides an application's latency by what GPU time costs, where every model was profiled; nil: it was not, and
// the models' SLOs have to do.
func (s *System) offsets(r *repo.Repository, g *dag.Graph) []time.Duration {
	profiles := make([]*profile.Profile, len(g.Steps))
	for j := range g.Steps {
		if step := &g.Steps[j]; step.Model != "" {
			if profiles[j] = r.Profile(step.Model, step.Version); profiles[j] == nil {
				return nil
			}
		}
	}
	b, err := g.Split(func(step int) *profile.Profile { return profiles[step] }, applicationRate, applicationHop)
	if err != nil {
		s.log.Warn("an application's latency cannot be met by its profiles", "application", g.Name, "err", err)
		return nil
	}
	return b.Offset
}
