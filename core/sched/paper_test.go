package sched_test

import (
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// The claims of Symphony, each in a test named by its section.

const span = 5e9

func world(t *testing.T, models, gpus int, slo time.Duration, gaps arrivals.Gaps, rate float64) *sim.World {
	t.Helper()
	e := profile.Entry{Name: "ResNet50", Alpha: 1053 * time.Microsecond, Beta: 5072 * time.Microsecond, SLO: slo} // table 4
	p, err := e.Profile()
	if err != nil {
		t.Fatal(err)
	}
	w := &sim.World{GPUs: gpus}
	for range models {
		w.Models = append(w.Models, sim.Model{Profile: p, SLO: sim.Duration(slo)})
	}
	w.Arrivals = arrivals.NewUnit(1, gaps, arrivals.Even(models), rate*5.1+100).At(rate, span, nil)
	return w
}

func bad(r *sim.Result) float64 {
	n, b := 0, 0
	for m := range r.Total {
		n, b = n+r.Total[m], b+r.Bad[m]
	}
	return float64(b) / float64(n)
}

// TestSection42StaggeredExecution: with evenly spaced arrivals and N GPUs, batches come near the
// largest b with (1+1/N)·ℓ(b) ≤ SLO and the throughput near N·b/ℓ(b) (equations 2 and 3).
func TestSection42StaggeredExecution(t *testing.T) {
	const gpus, slo, b = 8, 25 * time.Millisecond, 16
	w := world(t, 1, gpus, slo, arrivals.Gaps{Shape: 1e6}, 1)
	ell := w.Models[0].Profile.Exec(b)
	if (ell*9)/8 > slo || (w.Models[0].Profile.Exec(b+1)*9)/8 <= slo {
		t.Fatalf("table 4's staggered batch is not %d", b)
	}
	bound := gpus * b / ell.Seconds() // 5,839 r/s
	w = world(t, 1, gpus, slo, arrivals.Gaps{Shape: 1e6}, 0.95*bound)
	r := w.Run(sim.NewDownbeat(w))
	mean := float64(len(w.Arrivals)) / float64(r.Batches)
	if bad(r) > 0.01 || mean < 0.8*b {
		t.Errorf("at 95 %% of %.0f r/s: %.2f %% bad, mean batch %.1f; want ≤ 1 %% and near %d", bound, 100*bad(r), mean, b)
	}
}

// TestSection43DefersUntilSchedAt: a candidate becomes schedulable at dl − ℓ(|reqs|+1) although a GPU is idle, and
// not later.
func TestSection43DefersUntilSchedAt(t *testing.T) {
	p, err := profile.Linear(time.Millisecond, 5*time.Millisecond, 16)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n < 10; n++ {
		s := sched.New(sched.Options{})
		if err := s.AddModel(0, 1, sched.Model{Profile: p, SLO: 50e6}); err != nil {
			t.Fatal(err)
		}
		if err := s.AddGPU(0, 1, 0); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			s.Enqueue(sched.Time(i), sched.Request{ID: sched.RequestID(i), Model: 1, Deadline: 50e6})
		}
		batches, _ := s.Actions()
		for len(batches) == 0 {
			s.Advance(s.NextWake())
			batches, _ = s.Actions()
		}
		if want := 50e6 - sched.Time(p.Exec(n+1)); batches[0].ExecAt != want || len(batches[0].Requests) != n {
			t.Errorf("%d requests: batch %+v, want it at %d", n, batches[0], want)
		}
	}
}

// TestSection43DeferringBeatsWorkConserving: for a model with a strong batching effect under a
// tight SLO, deferring serves a load at which taking every idle GPU at once loses at least 14 % of
// the requests (figure 4b).
func TestSection43DeferringBeatsWorkConserving(t *testing.T) {
	w := world(t, 20, 32, 15*time.Millisecond, arrivals.Poisson, 12000)
	if b := bad(w.Run(sim.NewDownbeat(w))); b > 0.01 {
		t.Errorf("deferring: %.2f %% bad at 12,000 r/s, want ≤ 1 %%", 100*b)
	}
	w = world(t, 20, 32, 15*time.Millisecond, arrivals.Poisson, 12000)
	if b := bad(w.Run(newEager(w))); b < 0.14 {
		t.Errorf("work-conserving: %.2f %% bad at 12,000 r/s: the test shows nothing", 100*b)
	}
}

// TestSection43WeakBatchingLosesNothing: for BERT, which gains next to nothing from batching, deferring serves at
// least 0.95 of what work-conserving dispatch serves (figure 4c).
func TestSection43WeakBatchingLosesNothing(t *testing.T) {
	bert := func(load float64) *sim.World {
		w := world(t, 16, 32, 50*time.Millisecond, arrivals.Poisson, 1)
		for _, e := range profile.GTX1080Ti() {
			if e.Name != "BERT" {
				continue
			}
			e.SLO = 50 * time.Millisecond
			p, err := e.Profile()
			if err != nil {
				t.Fatal(err)
			}
			for i := range w.Models {
				w.Models[i].Profile = p
			}
			rate := load * 32 * float64(p.Max()) / p.Exec(p.Max()).Seconds()
			w.Arrivals = arrivals.NewUnit(1, arrivals.Poisson, arrivals.Even(16), rate*5.1+100).At(rate, span, nil)
		}
		return w
	}
	for _, load := range []float64{0.5, 0.9, 1.2} {
		d, e := bert(load), bert(load)
		deferring, eager := 1-bad(d.Run(sim.NewDownbeat(d))), 1-bad(e.Run(newEager(e)))
		if deferring < 0.95*eager {
			t.Errorf("load %.1f: deferring serves %.4f, work-conserving %.4f", load, deferring, eager)
		}
	}
}

// eager gives any idle GPU to the model with the earliest deadline, and drops past deadlines.
type eager struct {
	w    *sim.World
	q    [][]int32
	idle []int32
}

func newEager(w *sim.World) *eager {
	e := &eager{w: w, q: make([][]int32, len(w.Models))}
	for g := range w.GPUs {
		e.idle = append(e.idle, int32(g))
	}
	return e
}

func (e *eager) Arrive(now sim.Time, r, m int32) { e.q[m] = append(e.q[m], r); e.run(now) }
func (e *eager) Done(now sim.Time, gpu int32)    { e.idle = append(e.idle, gpu); e.run(now) }
func (e *eager) Wake(now sim.Time)               {}
func (e *eager) NextWake() sim.Time              { return sched.Never }

func (e *eager) run(now sim.Time) {
	for len(e.idle) > 0 {
		best := -1
		for m := range e.q {
			p := e.w.Models[m].Profile
			for len(e.q[m]) > 0 && e.w.Deadline(e.q[m][0]) < now.Add(sim.Duration(p.Exec(1))) {
				e.w.Drop(e.q[m][0])
				e.q[m] = e.q[m][1:]
			}
			if len(e.q[m]) > 0 && (best < 0 || e.q[m][0] < e.q[best][0]) {
				best = m
			}
		}
		if best < 0 {
			return
		}
		p, q := e.w.Models[best].Profile, e.q[best]
		n := max(1, min(len(q), p.BatchMax(time.Duration(e.w.Deadline(q[0])-now))))
		gpu := e.idle[len(e.idle)-1]
		e.idle = e.idle[:len(e.idle)-1]
		e.w.Start(now, gpu, int32(best), q[:n])
		e.q[best] = q[n:]
	}
}

// fig10 is §5.3's workload: 10 models, 100 ms, 24 GPUs; its peak goodput is near 21,100 r/s.
func fig10(t *testing.T, rate float64) *sim.Result {
	w := world(t, 10, 24, 100*time.Millisecond, arrivals.Poisson, rate)
	return w.Run(sim.NewDownbeat(w))
}

const fig10Peak = 21100

// TestSection44FlatTop: offered twice the peak, the bad rate is comparable to (o−p)/o.
func TestSection44FlatTop(t *testing.T) {
	r := fig10(t, 2*fig10Peak)
	if good := 2 * (1 - bad(r)); good < 0.98 {
		t.Errorf("at twice the peak %.3f of the peak is served, want ≥ 0.98", good)
	}
	for m := range r.Total {
		if b := float64(r.Bad[m]) / float64(r.Total[m]); b > 0.65 {
			t.Errorf("model %d has %.2f bad: the damage is not shared", m, b)
		}
	}
}

// TestSection44IdleTimeFollowsLoad: below the peak the GPUs' idle fraction is near (p−o)/p.
func TestSection44IdleTimeFollowsLoad(t *testing.T) {
	for _, load := range []float64{0.3, 0.5, 0.7, 0.9} {
		r := fig10(t, load*fig10Peak)
		busy := float64(r.Busy) / 24 / span
		if d := busy - load; d > 0.03 || d < -0.03 || bad(r) > 0.01 {
			t.Errorf("load %.1f of the peak: busy %.3f, bad %.4f", load, busy, bad(r))
		}
	}
}

// TestSection45RankerIsTouchedPerBatch: a ranker gets messages per batch, not per request: one candidate, grant and
// answer for each batch; where GPUs are scarce also whenever a waiting batch grew by an eighth.
func TestSection45RankerIsTouchedPerBatch(t *testing.T) {
	for load, most := range map[float64]float64{0.5: 3.1, 0.8: 3.1, 1: 24} {
		r := newCarried(t, 10, 24)
		r.run(load * fig10Peak)
		perBatch, size := float64(r.messages)/float64(r.batches), float64(r.requests)/float64(r.batches)
		if perBatch > most || size < 40 {
			t.Errorf("load %.1f: %.1f messages per batch of %.1f, want at most %.1f", load, perBatch, size, most)
		}
	}
}

// carried has both halves and counts every message between them.
type carried struct {
	p                           *sched.Partition
	r                           *sched.Ranker
	models                      int
	ends                        []sched.Free
	messages, batches, requests int
}

func newCarried(t *testing.T, models, gpus int) *carried {
	t.Helper()
	w := world(t, models, gpus, 100*time.Millisecond, arrivals.Poisson, 1)
	c := &carried{p: sched.NewPartition(sched.Options{}), r: sched.NewRanker(0, sched.Options{}), models: models}
	for i := range models {
		if err := c.p.AddModel(0, sched.ModelID(i), sched.Model{Profile: w.Models[i].Profile, SLO: 100e6}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range gpus {
		if err := c.r.AddGPU(0, sched.GPUID(i), 1); err != nil {
			t.Fatal(err)
		}
	}
	c.p.SetGPUs(0, 0, gpus)
	return c
}

func (c *carried) run(rate float64) {
	for i, a := range arrivals.NewUnit(1, arrivals.Poisson, arrivals.Even(c.models), rate*5.1+100).At(rate, span, nil) {
		at := sched.Time(a.At)
		for now := sched.Time(0); now < at; {
			now = min(at, c.p.NextWake(), c.r.NextWake())
			for k := range c.ends {
				now = min(now, c.ends[k].FreeAt)
			}
			kept := c.ends[:0]
			for _, f := range c.ends {
				if f.FreeAt <= now {
					_ = c.r.Complete(now, f.Batch, f.GPU, f.FreeAt) // the ranker counts an unknown one
					continue
				}
				kept = append(kept, f)
			}
			c.ends = kept
			c.p.Advance(now)
			c.carry(now)
		}
		c.p.Enqueue(at, sched.Request{ID: sched.RequestID(i), Model: sched.ModelID(a.Model), Deadline: at.Add(100e6)})
		c.requests++
		c.carry(at)
	}
}

// carry passes messages from one half to the other until none is left.
func (c *carried) carry(now sched.Time) {
	for {
		o := c.p.Outputs()
		c.messages += len(o.Frees) + len(o.Candidates)
		for _, f := range o.Frees {
			c.r.Free(now, &f)
			if f.Batch != 0 {
				c.batches++
				c.ends = append(c.ends, f)
			}
		}
		for _, x := range o.Candidates {
			c.r.Candidate(now, &x)
		}
		o.Reset()
		grants := c.r.Advance(now)
		if len(grants) == 0 {
			return
		}
		for _, g := range grants {
			c.p.Grant(now, g)
		}
		c.messages += len(grants)
	}
}

// TestPurity: the package imports nothing that could read time, draw random numbers or wait.
func TestPurity(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	allowed := map[string]bool{"cmp": true, "errors": true, "fmt": true, "math": true, "math/bits": true, "slices": true, "sort": true,
		"downbeat.dev/core/limits": true, "downbeat.dev/core/model": true, "downbeat.dev/core/profile": true}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range parsed.Imports {
			if path, _ := strconv.Unquote(i.Path.Value); !allowed[path] {
				t.Errorf("%s imports %s", f.Name(), path)
			}
		}
	}
}
