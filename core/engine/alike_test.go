package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// asking is one request of TestBothDriversDecideAlike.
type asking struct {
	at     sched.Time
	model  int
	budget sched.Time
}

// drawAskings draws requests for three models over a second, at a load at which some of them end without an output.
func drawAskings(rng *rand.Rand) (all []asking) {
	for at := 2 * ms; at < 1000*ms; at += sched.Time(rng.ExpFloat64() * float64(ms) / 2) {
		all = append(all, asking{at: at, model: rng.IntN(3), budget: sched.Time(12+rng.IntN(60)) * ms})
	}
	return all
}

// TestBothDriversDecideAlike shows that the two drivers of core/sched's halves decide alike: the engine's turns,
// which serve, and sched.Scheduler, with which core/sim.World compares policies. The same requests on the same GPUs
// become the same batches at the same times, and the same requests are dropped.
func TestBothDriversDecideAlike(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 1))
		all, gpus := drawAskings(rng), 2+rng.IntN(3)

		served, dropped := throughEngine(t, all, gpus, 1+int(seed%3))
		if len(served) < 100 || dropped == "[]" {
			t.Fatalf("seed %d: %d batches, %q dropped: the test tries too little", seed, len(served), dropped)
		}
		again, without := throughScheduler(t, all, gpus)
		for i := range min(len(served), len(again)) {
			if served[i] != again[i] {
				t.Fatalf("seed %d, %d GPUs: batch %d of the engine is %s, of sched.Scheduler %s", seed, gpus, i, served[i], again[i])
			}
		}
		if len(served) != len(again) || dropped != without {
			t.Errorf("seed %d: %d and %d batches; dropped %s, and %s", seed, len(served), len(again), dropped, without)
		}
	}
}

// batchText describes a batch that was sent.
func batchText(now sched.Time, model int, gpu uint32, ids []uint64) string {
	slices.Sort(ids)
	return fmt.Sprintf("at %v model %d on %d: %v", time.Duration(now), model, gpu, ids)
}

// noting is a backend that records its batches.
type noting struct {
	*emulated
	told *[]string
}

func (n noting) Execute(m []Order) {
	for i := range m {
		var x wire.Execute
		m[i].Message(&x)
		var ids []uint64
		for _, item := range x.Items {
			ids = append(ids, item.ID)
		}
		*n.told = append(*n.told, batchText(n.s.clock.now, int(x.Model), x.GPU, ids))
	}
	n.emulated.Execute(m)
}

func throughEngine(t *testing.T, all []asking, gpus, partitions int) (batches []string, dropped string) {
	s := newStage(t, Options{Partitions: partitions, Ctrl: alikeCtrl, Data: alikeData})
	h := hello("b", gpus, slope, "m0", "m1", "m2")
	b := noting{&emulated{s: s, said: h, profile: slope, peers: map[uint32]string{}, nodes: map[uint32]string{}, running: map[uint32]sched.Time{}, answers: map[uint64]uint32{}}, &batches}
	x, err := s.e.OpenBackend(h, b)
	if err != nil {
		t.Fatal(err)
	}
	b.Backend = x

	f := s.frontend()
	for i, a := range all {
		s.run(a.at)
		f.ask(uint64(i+1), fmt.Sprint("m", a.model), a.budget)
	}
	s.run(2000 * ms)

	var none []uint64
	for i := range all {
		if got := s.ends[uint64(i+1)]; len(got) != 1 || got[0] != "output" {
			none = append(none, uint64(i+1))
		}
	}
	return batches, fmt.Sprint(none)
}

// Given delays are not measured.
const alikeCtrl, alikeData = 100 * time.Microsecond, time.Microsecond

// mirror drives a sched.Scheduler as a stage drives an engine.
type mirror struct {
	t       *testing.T
	s       *sched.Scheduler
	now     sched.Time
	running []sched.Time // by GPU: the end of its batches
	under   []underway
	batches []string
	dropped []uint64
}

type underway struct {
	end   sched.Time
	batch sched.BatchID
	gpu   sched.GPUID
}

func newMirror(t *testing.T, gpus int) *mirror {
	m := &mirror{t: t, s: sched.New(sched.Options{Ctrl: sched.Duration(alikeCtrl), Data: sched.Duration(alikeData)}), now: ms, running: make([]sched.Time, gpus)}
	p, err := profile.New(slope)
	for id := range 3 {
		err = errors.Join(err, m.s.AddModel(m.now, sched.ModelID(id), sched.Model{Profile: p, SLO: sched.Duration(50 * ms), SubCluster: 1}))
	}
	for g := range gpus {
		err = errors.Join(err, m.s.AddGPU(m.now, sched.GPUID(g), 1))
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// drain runs the decided batches and records the drops.
func (m *mirror) drain() {
	sent, drops := m.s.Actions()
	for i := range sent {
		b := &sent[i]
		var ids []uint64
		for k := range b.Requests {
			ids = append(ids, uint64(b.Requests[k].ID))
		}
		m.batches = append(m.batches, batchText(m.now, int(b.Model), uint32(b.GPU), ids))
		m.running[b.GPU] = max(b.ExecAt, m.running[b.GPU]) + sched.Time(slope[len(ids)-1])
		m.under = append(m.under, underway{m.running[b.GPU], b.ID, b.GPU})
	}
	for _, d := range drops {
		m.dropped = append(m.dropped, uint64(d.ID))
	}
}

// advance moves time forward in the stage's order: ends first, then wake-ups.
func (m *mirror) advance(to sched.Time) {
	for {
		at, k := min(m.s.NextWake(), to), -1
		for i := range m.under {
			if m.under[i].end <= at {
				at, k = m.under[i].end, i
			}
		}
		m.now = max(m.now, at)
		if k >= 0 {
			r := m.under[k]
			m.under = slices.Delete(m.under, k, k+1)
			if err := m.s.Complete(m.now, r.batch, r.gpu, m.now); err != nil {
				m.t.Fatal(err)
			}
			m.drain()
		}
		m.s.Advance(m.now)
		m.drain()
		if k < 0 && at >= to {
			return
		}
	}
}

func throughScheduler(t *testing.T, all []asking, gpus int) (batches []string, dropped string) {
	m := newMirror(t, gpus)
	for i, a := range all {
		m.advance(a.at)
		if why := m.s.Enqueue(m.now, sched.Request{ID: sched.RequestID(i + 1), Model: sched.ModelID(a.model), Deadline: m.now + a.budget}); why != 0 {
			m.dropped = append(m.dropped, uint64(i+1))
		}
		m.drain()
	}
	m.advance(2000 * ms)
	slices.Sort(m.dropped)
	return m.batches, fmt.Sprint(m.dropped)
}
