package plan

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// drawPlacement places models until GPUs are nearly full; with partial, some are in transition.
func drawPlacement(rng *rand.Rand, f Fleet, partial bool) Placement {
	p := make(Placement, len(f.Static))
	for m := range p {
		p[m] = make([]Residence, len(f.Memory))
	}
	for range 3 * len(p) {
		m, g := rng.IntN(len(p)), rng.IntN(len(f.Memory))
		p[m][g] = Offered
		if partial && rng.IntN(4) == 0 {
			p[m][g] = Residence(1 + rng.IntN(3))
		}
		if f.needs(p, g) > f.Memory[g] {
			p[m][g] = Absent
		}
	}
	return p
}

func drawFleet(rng *rand.Rand, spare int64) Fleet {
	var f Fleet
	for range 1 + rng.IntN(5) {
		f.Memory = append(f.Memory, 400+spare+rng.Int64N(800))
	}
	if rng.IntN(2) == 0 { // otherwise each GPU has its own backend
		for g := range f.Memory {
			f.Hosts = append(f.Hosts, int32(g/2))
		}
	}
	for range 1 + rng.IntN(12) {
		f.Static, f.Dynamic = append(f.Static, 50+rng.Int64N(200)), append(f.Dynamic, rng.Int64N(100))
	}
	return f
}

// TestReconfigurationsSurviveEveryInterruption stops after each step and continues to the wanted placement, and back
// to the first one.
func TestReconfigurationsSurviveEveryInterruption(t *testing.T) {
	gaps := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 40))
		f := drawFleet(rng, 0)
		present, wanted := drawPlacement(rng, f, true), drawPlacement(rng, f, false)
		r, err := Reconfigure(f, present, wanted)
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckReconfiguration(f, present, wanted, r); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		gaps += len(r.Gaps)

		settled := drawPlacement(rng, f, false)
		for cut := range len(r.Steps) + 1 {
			killed := newReconfiguring(&f, present, wanted)
			for _, s := range r.Steps[:cut] {
				killed.apply(s)
			}
			for _, goal := range []Placement{wanted, settled} {
				rest, err := Reconfigure(f, killed.now, goal)
				if err != nil {
					t.Fatalf("seed %d: killed after step %d: %v", seed, cut, err)
				}
				if err := CheckReconfiguration(f, killed.now, goal, rest); err != nil {
					t.Fatalf("seed %d: killed after step %d: %v", seed, cut, err)
				}
			}
		}
	}
	if gaps == 0 {
		t.Error("no draw was tight enough for a gap: the test tries too little")
	}
}

// TestNoGapsWhereThereIsRoom gives every GPU room for both placements.
func TestNoGapsWhereThereIsRoom(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 41))
		f := drawFleet(rng, 0)
		present, wanted := drawPlacement(rng, f, true), drawPlacement(rng, f, false)
		for g := range f.Memory {
			f.Memory[g] *= 2
		}
		r, err := Reconfigure(f, present, wanted)
		if err != nil || len(r.Gaps) > 0 {
			t.Fatalf("seed %d: %d gaps, %v", seed, len(r.Gaps), err)
		}
		if err := CheckReconfiguration(f, present, wanted, r); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// TestEveryStepHasAnInverse undoes each step with its inverse and returns to the previous placement.
func TestEveryStepHasAnInverse(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 42))
	f := drawFleet(rng, 2000)
	present, wanted := drawPlacement(rng, f, false), drawPlacement(rng, f, false)
	r, err := Reconfigure(f, present, wanted)
	if err != nil {
		t.Fatal(err)
	}
	state := newReconfiguring(&f, present, wanted)
	for _, s := range r.Steps {
		state.apply(s)
	}
	for _, s := range slices.Backward(r.Steps) {
		if kind, ok := s.Kind.Inverse(); ok {
			s.Kind = kind
			state.apply(s)
		}
	}
	for m := range present {
		for g := range present[m] {
			back := state.now[m][g]
			if back == Loaded { // loaded again to undo an unload; the warm-up and the offer follow
				back = Warm
			}
			if before := present[m][g]; back != before && !(before == Offered && back == Warm) {
				t.Errorf("model %d on GPU %d: state %d after undoing, was %d", m, g, back, before)
			}
		}
	}
}

func TestOneModelMoves(t *testing.T) {
	f := Fleet{Memory: []int64{100, 100}, Static: []int64{60}, Dynamic: []int64{20}}
	r, err := Reconfigure(f, Placement{{Offered, Absent}}, Placement{{Absent, Offered}})
	if err != nil {
		t.Fatal(err)
	}
	want := []Step{{1, StepLoad, 0, 1}, {2, StepWarmUp, 0, 1}, {3, StepOffer, 0, 1}, {4, StepWithdraw, 0, 0}, {5, StepUnload, 0, 0}}
	if !slices.Equal(r.Steps, want) || len(r.Gaps) > 0 {
		t.Errorf("%v, gaps %v; want %v", r.Steps, r.Gaps, want)
	}
}

// TestTwoModelsSwapOnFullGPUs has no solution without a gap, and the result names the model.
func TestTwoModelsSwapOnFullGPUs(t *testing.T) {
	f := Fleet{Memory: []int64{100, 100}, Static: []int64{80, 80}, Dynamic: []int64{20, 20}}
	present, wanted := Placement{{Offered, Absent}, {Absent, Offered}}, Placement{{Absent, Offered}, {Offered, Absent}}
	r, err := Reconfigure(f, present, wanted)
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckReconfiguration(f, present, wanted, r); err != nil || len(r.Gaps) != 1 {
		t.Errorf("gaps %v, %v; want one", r.Gaps, err)
	}
}

func TestReconfigureRefuses(t *testing.T) {
	for want, spoil := range map[string]func(*Fleet, *Placement, *Placement){
		"number of models":              func(f *Fleet, _, _ *Placement) { f.Static = f.Static[:0] },
		"model 0: memory":               func(f *Fleet, _, _ *Placement) { f.Dynamic[0] = -1 },
		"model 0: number of GPUs":       func(_ *Fleet, present, _ *Placement) { (*present)[0] = nil },
		"model 0 on GPU 0: residence":   func(_ *Fleet, _, wanted *Placement) { (*wanted)[0][0] = Warm },
		"number of GPUs with a backend": func(f *Fleet, _, _ *Placement) { f.Hosts = []int32{0, 0} },
		"GPU 0 for what is wanted: 80":  func(f *Fleet, _, _ *Placement) { f.Memory[0] = 79 },
	} {
		f, present, wanted := Fleet{Memory: []int64{100}, Static: []int64{60}, Dynamic: []int64{20}}, Placement{{Absent}}, Placement{{Offered}}
		spoil(&f, &present, &wanted)
		if _, err := Reconfigure(f, present, wanted); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
}

func FuzzReconfigure(f *testing.F) {
	f.Add(uint64(1), []byte{3, 2, 1, 0, 3, 3}, []byte{0, 3, 3})
	f.Fuzz(func(t *testing.T, seed uint64, present, wanted []byte) {
		fleet := drawFleet(rand.New(rand.NewPCG(seed, 43)), 0)
		read := func(text []byte) Placement {
			p := make(Placement, len(fleet.Static))
			for m := range p {
				p[m] = make([]Residence, len(fleet.Memory))
				for g := range p[m] {
					if at := m*len(p[m]) + g; at < len(text) {
						p[m][g] = Residence(text[at])
					}
				}
			}
			return p
		}
		from, to := read(present), read(wanted)
		r, err := Reconfigure(fleet, from, to)
		if err != nil {
			return
		}
		if err := CheckReconfiguration(fleet, from, to, r); err != nil {
			t.Fatal(err)
		}
	})
}

// BenchmarkReconfigure moves 5 % of 800 models between 20 sub-clusters of 16 GPUs.
func BenchmarkReconfigure(b *testing.B) {
	const models, clusters, gpus = 800, 20, 16
	f := Fleet{Memory: make([]int64, clusters*gpus), Static: make([]int64, models), Dynamic: make([]int64, models)}
	for g := range f.Memory {
		f.Memory[g] = 20_000
	}
	present, wanted := make(Placement, models), make(Placement, models)
	for m := range present {
		f.Static[m], f.Dynamic[m] = int64(80+m%7*50), int64(2000+m%5*500)
		present[m], wanted[m] = make([]Residence, len(f.Memory)), make([]Residence, len(f.Memory))
		from, to := m%clusters, m%clusters
		if m%20 == 0 {
			to = (m/20 + 3) % clusters
		}
		for g := range gpus {
			present[m][from*gpus+g], wanted[m][to*gpus+g] = Offered, Offered
		}
	}
	for b.Loop() {
		if _, err := Reconfigure(f, present, wanted); err != nil {
			b.Fatal(err)
		}
	}
}
