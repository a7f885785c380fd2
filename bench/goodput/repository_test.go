package goodput

import (
	"testing"
	"time"

	"downbeat.dev/core/repo"
)

// TestARepositoryHasTheSettingsModels: processes read the same profiles and SLOs that virtual time runs.
func TestARepositoryHasTheSettingsModels(t *testing.T) {
	all, err := Select("fig6-1080ti-all")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := all[0].WriteRepository(dir); err != nil {
		t.Fatal(err)
	}
	r, err := repo.Open(dir)
	if err != nil {
		t.Fatal(err)
	}

	read := map[string]repo.Model{}
	for _, m := range r.Models {
		read[m.Name] = m
	}
	for _, e := range all[0].Models {
		m, found := read[e.Name]
		p, err := e.Profile()
		if err != nil {
			t.Fatal(err)
		}
		if !found || !p.Has(m.Table()) || m.SLO.Round(time.Microsecond) != e.SLO {
			t.Errorf("%s: found %v, SLO %v, ℓ %v; want %+v", e.Name, found, m.SLO, m.Table(), e)
		}
	}
	if len(read) != len(all[0].Models) {
		t.Errorf("%d models read, want %d", len(read), len(all[0].Models))
	}
}
