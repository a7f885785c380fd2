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

// Assumptions for splitting an application's latency among its stages when no session states a rate.
const (
	applicationRate = 10
	applicationHop  = 500 * time.Microsecond
)

// openApplications opens the applications of the model repository; the client must be open. An application that
// cannot run is logged and left out. The result is nil if there are none.
func (s *System) openApplications() *app.Set {
	o := repo.Options{Graph: onnx.Signature}
	if s.config.Protocol.StrictModels {
		o.Graph = nil
	}
	r, err := repo.OpenAll(strings.Split(s.config.Models, ","), o)
	if err != nil {
		// A gateway alone has no repository and needs none.
		if s.backend != nil || !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("no applications", "err", err)
		}
		return nil
	}

	graphs, refused := r.Graphs()
	for _, e := range refused {
		s.log.Warn("an application is left out", "application", e.Model, "err", e.Err)
	}

	// All applications share one admission: their sessions compete for the same GPUs.
	gate := s.admission()
	var all []*app.App
	for _, g := range graphs {
		a, err := app.New(s.client, g, s.applicationOptions(r, g, gate))
		if err != nil {
			s.log.Warn("an application is left out", "application", g.Name, "err", err)
			continue
		}

		// The application must be closed before the client, whose memory holds its buffers.
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

// applicationOptions splits an application's latency among its stages by GPU time if every model has a profile.
// Otherwise the stages use their models' SLOs and sessions open without admission.
func (s *System) applicationOptions(r *repo.Repository, g *dag.Graph, gate *app.Admission) app.Options {
	o := app.Options{Hooks: s.config.Hooks}
	profiles := profilesAt(r, g, 0)
	if profiles == nil {
		return o
	}

	o.Profiles, o.Admission = profiles, gate
	o.AtFloor = func(floor float64) dag.Profiles { return profilesAt(r, g, floor) }
	b, err := g.Split(o.Profiles, applicationRate, applicationHop)
	if err != nil {
		s.log.Warn("an application's latency cannot be met by its profiles", "application", g.Name, "err", err)
		return o
	}
	o.Offsets = b.Offset
	return o
}

// profilesAt returns for each step the profile of the model that answers at or above a floor; nil if a step has none.
func profilesAt(r *repo.Repository, g *dag.Graph, floor float64) dag.Profiles {
	byStep := make([]*profile.Profile, len(g.Steps))

	// Hooks have no profile: they take no GPU time.
	for j := range g.Steps {
		if step := &g.Steps[j]; step.Model != "" {
			if byStep[j] = r.ProfileAt(step.Model, step.Version, floor); byStep[j] == nil {
				return nil
			}
		}
	}
	return func(step int) *profile.Profile { return byStep[step] }
}
