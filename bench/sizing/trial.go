package sizing

import (
	"context"
	"sort"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/sim"
)

// fleet is a load on GPUs of one kind, drawn once for all numbers of GPUs.
type fleet struct {
	o        Options
	services []Service
	models   []sim.Model
	seeds    [][]arrivals.Arrival
	tried    map[int]Point
}

func newFleet(services []Service, k Kind, o Options) *fleet {
	f := &fleet{o: o, services: services, tried: map[int]Point{}}
	sum := 0.0
	for _, s := range services {
		f.models = append(f.models, simService(s, k, !haveNoFamilies(services)))
		sum += s.Rate
	}

	var share []float64
	least := 1.0
	for _, s := range services {
		share = append(share, s.Rate/sum)
		least = min(least, s.Rate/sum)
	}

	// Arrivals do not depend on the number of GPUs, so every trial has the same ones.
	for seed := range o.Seeds {
		unit := arrivals.NewUnit(uint64(seed+1), o.Gaps, share, sum*o.Span.Seconds()*1.001+1)
		f.seeds = append(f.seeds, unit.At(sum, o.Span, nil))
	}
	return f
}

// try runs all seeds on a number of GPUs.
func (f *fleet) try(ctx context.Context, gpus int) (Point, error) {
	if p, done := f.tried[gpus]; done {
		return p, nil
	}

	t := newTally(f.services)
	for _, arrived := range f.seeds {
		if err := ctx.Err(); err != nil {
			return Point{}, err
		}
		// Use a new world each time, so that the scheduler begins without learned state.
		w := &sim.World{Models: f.models, GPUs: gpus, Ctrl: sim.Duration(f.o.Ctrl), Data: sim.Duration(f.o.Data), Arrivals: arrived}
		w.Answered = t.countAnswers
		t.addSeed(w, w.Run(sim.NewDownbeat(w)))
	}

	p := t.point(gpus)
	f.tried[gpus] = p
	return p, nil
}

func (f *fleet) sorted() []Point {
	var out []Point
	for _, p := range f.tried {
		out = append(out, p)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].GPUs < out[j].GPUs })
	return out
}

// tally sums the seeds of a trial, by service.
type tally struct {
	services       []Service
	total, bad     []int
	accuracy       []float64 // sum over answers
	answers        []int
	busy, capacity float64 // GPU seconds
	batches, sizes int
}

func newTally(services []Service) *tally {
	n := len(services)
	return &tally{services: services, total: make([]int, n), bad: make([]int, n), accuracy: make([]float64, n), answers: make([]int, n)}
}

// countAnswers counts the accuracy of a batch; the World calls it only for families.
func (t *tally) countAnswers(_, service, variant int32, _, _ sim.Time, requests []int32) {
	t.accuracy[service] += t.services[service].Variants[variant].Accuracy * float64(len(requests))
	t.answers[service] += len(requests)
}

func (t *tally) addSeed(w *sim.World, r *sim.Result) {
	for s := range t.total {
		t.total[s] += r.Total[s]
		t.bad[s] += r.Bad[s]
	}

	t.busy += float64(r.Busy) / 1e9
	t.capacity += float64(w.GPUs) * float64(r.End) / 1e9
	t.batches += r.Batches
	for _, n := range r.SizeSum {
		t.sizes += n
	}
}

func (t *tally) point(gpus int) Point {
	p := Point{GPUs: gpus, Least: 1, Busy: t.busy / max(t.capacity, 1e-9), Batch: float64(t.sizes) / float64(max(1, t.batches))}
	total, bad, accuracy, answers := 0, 0, 0.0, 0
	for s := range t.total {
		if t.answers[s] == 0 { // a single model has one accuracy; so has a service without answers
			t.accuracy[s], t.answers[s] = t.services[s].Variants[0].Accuracy*float64(max(1, t.total[s]-t.bad[s])), max(1, t.total[s]-t.bad[s])
		}

		// The worst service decides: a mean would let a small one starve.
		p.Bad = max(p.Bad, float64(t.bad[s])/float64(max(1, t.total[s])))
		p.Least = min(p.Least, t.accuracy[s]/float64(t.answers[s]))
		total, bad = total+t.total[s], bad+t.bad[s]
		accuracy, answers = accuracy+t.accuracy[s], answers+t.answers[s]
	}

	p.BadAll, p.Accuracy = float64(bad)/float64(max(1, total)), accuracy/float64(answers)
	return p
}
