package sched

import "testing"

// TestPrefetchLinesAreThoseThatAdmitWrites: the next request of a model goes where PrefetchLines said, and an unknown model or a full
// queue has no such place.
func TestPrefetchLinesAreThoseThatAdmitWrites(t *testing.T) {
	s := New(Options{})
	if err := s.AddModel(0, 3, Model{Profile: line(t, 100_000, 1_000_000, 8), SLO: 1e9}); err != nil {
		t.Fatal(err)
	}
	if err := s.AddGPU(0, 0, 0); err != nil {
		t.Fatal(err)
	}

	p, named := s.part, 0
	a := p.Arrive(0)
	for i := range 3 * pieceMin {
		gaps, next := a.Find(3).PrefetchLines()
		r, why := p.Admit(0, 3, Time(1e9), 0)
		if r == nil {
			t.Fatal(why)
		}
		if next != nil && next != &r.Origin || gaps != &p.models[0].gaps[0] {
			t.Errorf("request %d was written to another place than PrefetchLines named", i)
		}
		if next != nil {
			named++
		}
	}
	if named < 2*pieceMin {
		t.Errorf("%d of %d requests had a place", named, 3*pieceMin)
	}
	if gaps, next := a.Find(4).PrefetchLines(); gaps != nil || next != nil {
		t.Error("an unknown model has a place")
	}
}
