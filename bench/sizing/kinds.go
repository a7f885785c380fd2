package sizing

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
)

// zoos are the published profiles, by kind.
var zoos = map[string]func() []profile.Entry{"1080ti": profile.GTX1080Ti, "a100": profile.A100}

// Source is the source of profiles by kind of GPU. Names of kinds must differ.
type Source struct {
	Zoos  []string          // published: 1080ti, a100
	Files map[string]string // a CSV of model,alpha_ms,beta_ms,slo_ms by the name of a kind
	Repo  string            // a model repository: every host kind that `downbeat profile` has measured; empty: none
}

// Load reads profiles for services. A service without an SLO gets that of its first variant in the source; the SLO
// bounds the batches of linear profiles.
func (s *Source) Load(services []Service) ([]Kind, error) {
	entries := map[string][]profile.Entry{}
	for _, name := range s.Zoos {
		zoo, known := zoos[name]
		if !known {
			return nil, fmt.Errorf("kind %q: want some of %s", name, strings.Join(slices.Sorted(maps.Keys(zoos)), ", "))
		}
		entries[name] = zoo()
	}

	for name, path := range s.Files {
		if entries[name] != nil {
			return nil, fmt.Errorf("kind %s appears twice", name)
		}
		read, err := readEntries(path)
		if err != nil {
			return nil, err
		}
		entries[name] = read
	}

	var measured *repo.Repository
	if s.Repo != "" {
		r, err := repo.Open(s.Repo)
		if err != nil {
			return nil, err
		}
		measured = r
	}
	if err := nameSLOs(services, entries, measured); err != nil {
		return nil, err
	}

	// Sort kinds by name: maps have no order, and answers are compared between runs.
	var kinds []Kind
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		k, err := kindOf(name, entries[name], services)
		if err != nil {
			return nil, err
		}
		kinds = append(kinds, k)
	}
	if measured != nil {
		kinds = append(kinds, hostKinds(measured)...)
	}
	return kinds, nil
}

func readEntries(path string) ([]profile.Entry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}

	defer f.Close()
	entries, err := profile.ReadCSV(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return entries, nil
}

// nameSLOs gives services without an SLO the longest one that a source has for their first variant.
func nameSLOs(services []Service, entries map[string][]profile.Entry, measured *repo.Repository) error {
	for i := range services {
		s := &services[i]
		if s.SLO > 0 {
			continue
		}

		for _, list := range entries {
			for _, e := range list {
				if e.Name == s.Variants[0].Model {
					s.SLO = max(s.SLO, e.SLO)
				}
			}
		}

		if measured != nil {
			if m, err := measured.Find(s.Variants[0].Model, ""); err == nil {
				s.SLO = max(s.SLO, m.SLO)
			}
		}

		if s.SLO <= 0 {
			return fmt.Errorf("model %s: no profile has its SLO: want -slo %s=50ms", s.Name, s.Name)
		}
	}
	return nil
}

// kindOf returns a list of entries as a kind, for the models that services name.
func kindOf(name string, entries []profile.Entry, services []Service) (Kind, error) {
	k := Kind{Name: name, Profiles: map[string]*profile.Profile{}}
	for _, s := range services {
		for _, v := range s.Variants {
			at := slices.IndexFunc(entries, func(e profile.Entry) bool { return e.Name == v.Model })
			if at < 0 {
				continue
			}

			// For a model in several services the longest SLO counts; if it is too short for ℓ(1), the largest batch
			// is one.
			e := entries[at]
			e.SLO = max(s.SLO, e.Alpha+e.Beta)
			p, err := e.Profile()
			if err != nil {
				return k, fmt.Errorf("kind %s: %w", name, err)
			}
			if old := k.Profiles[v.Model]; old == nil || p.Max() > old.Max() {
				k.Profiles[v.Model] = p
			}
		}
	}
	return k, nil
}

// hostKinds returns the kinds of hosts on which a repository's models were measured, by name.
func hostKinds(r *repo.Repository) []Kind {
	byHost := map[string]map[string]*profile.Profile{}
	add := func(host, model string, table []time.Duration) {
		p, err := profile.New(table)
		if err != nil {
			return // a model without times
		}
		if byHost[host] == nil {
			byHost[host] = map[string]*profile.Profile{}
		}
		byHost[host][model] = p
	}

	// Use a model's newest version, as for requests without a version.
	for _, name := range r.Names() {
		m, err := r.Find(name, "")
		if err != nil {
			continue
		}
		if table := m.Table(); len(table) > 0 {
			add("emulated", name, table)
		}
		for _, p := range m.Profiles {
			add(p.Host, name, p.TableNS)
		}
	}

	var kinds []Kind
	for _, host := range slices.Sorted(maps.Keys(byHost)) {
		kinds = append(kinds, Kind{Name: host, Profiles: byHost[host]})
	}
	return kinds
}
