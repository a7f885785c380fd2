package engine

import (
	"hash/maphash"
	"time"

	"downbeat.dev/core/profile"
)

// profiles finds the Profile that was made of a table. Homes with equal tables share one, so decisions read it from
// memory once.
type profiles struct {
	seed   maphash.Seed
	byHash map[uint64][]*profile.Profile
	count  int
	sweep  int // the count at which Profiles out of use are dropped
}

// sweepLeast keeps registries with few profiles from sweeping.
const sweepLeast = 256

// profile returns the Profile of a table.
func (g *registry) profile(table []time.Duration) (*profile.Profile, error) {
	s := &g.profiles
	if s.byHash == nil {
		s.seed, s.byHash, s.sweep = maphash.MakeSeed(), map[uint64][]*profile.Profile{}, sweepLeast
	}

	key := s.hash(table)
	for _, p := range s.byHash[key] {
		if p.Has(table) {
			return p, nil
		}
	}

	p, err := profile.New(table)
	if err != nil {
		return nil, err
	}

	if s.count >= s.sweep {
		g.sweepProfiles()
	}
	s.byHash[key] = append(s.byHash[key], p)
	s.count++
	return p, nil
}

// sweepProfiles drops the Profiles that no model uses. Profiles that are measured again and again would fill the
// memory otherwise. A sweep doubles the count of the next one, so it costs each new Profile a constant time.
func (g *registry) sweepProfiles() {
	s := &g.profiles
	clear(s.byHash)
	s.count = 0

	kept := map[*profile.Profile]bool{nil: true}
	keep := func(p *profile.Profile) {
		if !kept[p] {
			kept[p] = true
			key := s.hash(p.Table(p.Max()))
			s.byHash[key] = append(s.byHash[key], p)
			s.count++
		}
	}

	for _, m := range g.models {
		// A model without homes keeps its latest profile; when it returns, the profile is found here.
		keep(m.last)
		for k := range m.homes {
			keep(m.homes[k].prof)
		}
	}
	s.sweep = max(sweepLeast, 2*s.count)
}

func (s *profiles) hash(table []time.Duration) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	for _, d := range table {
		maphash.WriteComparable(&h, d)
	}
	return h.Sum64()
}
