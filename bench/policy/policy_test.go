package policy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// world draws a cluster, its models and two seconds of arrivals from a seed, at a load between a
// fifth and three times what the GPUs hold.
func world(t *testing.T, seed uint64) *sim.World {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 7))
	w := &sim.World{GPUs: 1 + rng.IntN(12)}
	if rng.IntN(2) == 0 {
		w.Ctrl, w.Data = sched.Duration(rng.IntN(500_000)), sched.Duration(rng.IntN(100_000))
	}
	n := 1 + rng.IntN(8)
	need := 0.0
	for i := range n {
		e := profile.Entry{Name: fmt.Sprint(i), Alpha: time.Duration(1+rng.IntN(5e6)) + 50_000, Beta: time.Duration(rng.IntN(12e6))}
		e.SLO = e.Alpha + e.Beta + 2*time.Millisecond + time.Duration(rng.IntN(80e6))
		p, err := e.Profile()
		if err != nil {
			t.Fatal(err)
		}
		w.Models = append(w.Models, sim.Model{Name: e.Name, Profile: p, SLO: sim.Duration(e.SLO)})
		need += p.Exec(p.Max()).Seconds() / float64(p.Max()) / float64(n)
	}
	rate := float64(w.GPUs) / need * (0.2 + 2.8*rng.Float64())
	shape := []float64{0.05, 0.3, 1, math.Inf(1)}[rng.IntN(4)]
	span := 2 * time.Second
	u := arrivals.NewUnit(seed, arrivals.Gaps{Shape: shape}, arrivals.Zipf(n, 0.9*float64(rng.IntN(2))), rate*span.Seconds()*1.01+50*float64(n*n))
	w.Arrivals = u.At(rate, span, nil)
	return w
}

// TestPoliciesKeepTheWorldsRules runs every policy on drawn clusters. The World panics when a GPU
// would run two batches at once, a batch starts before its inputs can be there, or a request ends
// twice or never.
func TestPoliciesKeepTheWorldsRules(t *testing.T) {
	for _, p := range All() {
		t.Run(p.Name, func(t *testing.T) {
			for seed := range uint64(30) {
				first, ended := run(t, p, seed)
				for r, ok := range ended {
					if !ok {
						t.Fatalf("seed %d: request %d never ended", seed, r)
					}
				}
				if again, _ := run(t, p, seed); !reflect.DeepEqual(first, again) {
					t.Fatalf("seed %d: two runs differ", seed)
				}
			}
		})
	}
}

// run serves a drawn world once and says which requests ended.
func run(t *testing.T, p Named, seed uint64) (*sim.Result, []bool) {
	t.Helper()
	defer func() {
		if e := recover(); e != nil {
			t.Fatalf("seed %d: %v", seed, e)
		}
	}()
	w := world(t, seed)
	ended := make([]bool, len(w.Arrivals))
	w.Ended = func(r int32, o sim.Outcome, at sim.Time) { ended[r] = true }
	return w.Run(p.New(w)), ended
}

// share runs table 4's ResNet50 (8 GPUs, 25 ms, Poisson) and returns the share of bad requests.
func share(t *testing.T, rate float64, make func(*sim.World) sim.Server) float64 {
	t.Helper()
	p, err := profile.Linear(1053*time.Microsecond, 5072*time.Microsecond, 18)
	if err != nil {
		t.Fatal(err)
	}
	w := &sim.World{GPUs: 8, Models: []sim.Model{{Profile: p, SLO: 25e6}}}
	w.Arrivals = arrivals.NewUnit(1, arrivals.Poisson, arrivals.Even(1), rate*11).At(rate, 10e9, nil)
	r := w.Run(make(w))
	return float64(r.Bad[0]) / float64(r.Total[0])
}

// TestOrderThatThePapersAgreeOn: distributed frontends cost goodput (Symphony §3.3), eager
// dispatch collapses under overload where a window keeps batches large (§4.4), margins cost
// Clockwork goodput, and central scheduling beats partitions (§5.2.2).
func TestOrderThatThePapersAgreeOn(t *testing.T) {
	by := make(map[string]func(*sim.World) sim.Server)
	for _, p := range All() {
		by[p.Name] = p.New
	}
	for _, c := range []struct {
		rate        float64
		less, worse string
	}{
		{4400, "nexus-1", "nexus-8"},
		{4600, "shepherd", "nexus-1"},
		{4600, "symphony-printed", "proteus"},
		{4000, "clockwork-bare", "clockwork"},
		{8000, "downbeat", "eager"},
		{8000, "symphony-windowed", "symphony-printed"},
	} {
		if a, b := share(t, c.rate, by[c.less]), share(t, c.rate, by[c.worse]); a >= b {
			t.Errorf("at %.0f r/s: %s has %.2f %% bad and %s %.2f %%, want fewer", c.rate, c.less, 100*a, c.worse, 100*b)
		}
	}
}

// TestModelsWithoutAPlaceAreDropped: where a static plan has no GPU for a model, its requests end unserved.
func TestModelsWithoutAPlaceAreDropped(t *testing.T) {
	e := profile.Entry{Name: "m", Alpha: 2 * time.Millisecond, Beta: 5 * time.Millisecond, SLO: 20 * time.Millisecond}
	p, err := e.Profile()
	if err != nil {
		t.Fatal(err)
	}
	w := &sim.World{GPUs: 1, Models: make([]sim.Model, 2), Arrivals: []arrivals.Arrival{{At: time.Second, Model: 1}}}
	for i := range w.Models {
		w.Models[i] = sim.Model{Name: "m", Profile: p, SLO: sim.Duration(e.SLO)}
	}
	if bad := w.Run(newPartitioned(w, 1, []node{{0.02, []session{{0, 1, 50}}}})).Bad[1]; bad != 1 {
		t.Errorf("%d of 1 requests of a model without a place are bad", bad)
	}
}
