package sched

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestUnusedEarlyGrantIsNotRepeated: a Ranker that grants a GPU early by an old candidate gets it back if the newest
// candidate gains more by growing. At the same now it must not grant the GPU to that model again, unless it allows
// more growth to be forgone: otherwise GPU and answer would go back and forth without end.
func TestUnusedEarlyGrantIsNotRepeated(t *testing.T) {
	unused := 0
	for seed := range uint64(20) {
		unused += newsLate(t, rand.New(rand.NewPCG(seed, 1)))
	}
	if unused < 20 {
		t.Errorf("%d early grants came back unused: the test shows nothing", unused)
	}
}

// newsLate drives bursts through both halves, with candidates that reach the Ranker late, and returns how many early
// grants came back unused.
func newsLate(t *testing.T, rng *rand.Rand) (unused int) {
	const models, gpus = 6, 5 // more models for each GPU would be a crowd, in which nothing is early
	p, r := NewPartition(Options{}), NewRanker(0, Options{})
	for id := range ModelID(models) {
		if err := p.AddModel(0, id, Model{Profile: line(t, time.Millisecond, 5*time.Millisecond, 32), SLO: 60 * ms}); err != nil {
			t.Fatal(err)
		}
	}
	for id := range GPUID(gpus) {
		if err := r.AddGPU(0, id, 1); err != nil {
			t.Fatal(err)
		}
	}
	p.SetGPUs(0, 0, gpus)
	var late []Candidate // under way
	id := RequestID(0)
	next, left, of := Time(0), 0, ModelID(0) // the next request, and the model of its burst
	for now := Time(0); now < Time(3_000*ms); now = max(now, min(p.NextWake(), r.NextWake(), next)) {
		for ; next <= now; left-- {
			id++
			p.Enqueue(now, Request{ID: id, Model: of, Deadline: now.Add(60 * ms)})
			next = now.Add(Duration(1 + rng.IntN(200_000)))
			if left <= 0 {
				left, of = rng.IntN(40), ModelID(rng.IntN(models))
				next = now.Add(Duration(rng.IntN(10_000_000)))
			}
		}
		p.Advance(now)
		if rng.IntN(3) == 0 {
			for _, c := range late {
				r.Candidate(now, &c)
			}
			late = late[:0]
		}
		late = append(late, p.Outputs().Candidates...)
		p.Outputs().Reset()
		unused += settled(t, now, p, r)
	}
	return unused
}

// settled passes messages between both halves until none is left, and returns how many early grants came back unused.
func settled(t *testing.T, now Time, p *Partition, r *Ranker) (unused int) {
	back := map[ModelID]float64{} // the allowed growth
	for {
		grants := r.Advance(now)
		if len(grants) == 0 {
			return unused
		}
		for _, g := range grants {
			if allowed, ok := back[g.Model]; g.Early && ok && g.Growth <= allowed {
				t.Fatalf("at %d: model %d gets a GPU early that it has just given back", now, g.Model)
			}
			p.Grant(now, g)
			if f := p.Outputs().Frees; g.Early && f[len(f)-1].Batch == 0 {
				back[g.Model] = g.Growth
				unused++
			}
		}
		out := p.Outputs()
		for _, f := range out.Frees {
			r.Free(now, &f)
			if f.Batch != 0 {
				if err := r.Complete(now, f.Batch, f.GPU, f.FreeAt); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, c := range out.Candidates {
			r.Candidate(now, &c)
		}
		out.Reset()
	}
}
