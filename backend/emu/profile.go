package emu

import (
	"fmt"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
)

// Profile returns the ℓ(b) with which m is emulated: its own if it is an emulated model, otherwise any stored
// profile, so that real models can be tried on absent GPUs.
func Profile(m *repo.Model) (*profile.Profile, error) {
	table := m.Table()

	// The longest table covers the most batch sizes. A lane's profile is no whole device's.
	for _, p := range m.Profiles {
		if len(table) < len(p.TableNS) && !device.IsLaneKind(p.Host) && m.Platform != repo.PlatformEmulated {
			table = p.TableNS
		}
	}

	if len(table) == 0 {
		return nil, fmt.Errorf("model %s version %s has no profile to emulate it by; measure it with: downbeat profile", m.Name, m.Version)
	}
	return profile.New(table)
}
