package emu

import (
	"fmt"

	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
)

// Profile returns the ℓ(b) with which m is emulated: its own if it is an emulated model, otherwise any stored
// profile, so that real models can be tried on absent GPUs.
func Profile(m *repo.Model) (*profile.Profile, error) {
	table := m.Table()

	// The longest table covers the most batch sizes.
	for _, p := range m.Profiles {
		if len(table) < len(p.TableNS) && m.Platform != repo.PlatformEmulated {
			table = p.TableNS
		}
	}

	if len(table) == 0 {
		return nil, fmt.Errorf("model %s version %s has no profile to emulate it by; measure it with: downbeat profile", m.Name, m.Version)
	}
	return profile.New(table)
}
