package goodput

import (
	"context"
	"runtime"
	"sync"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/sim"
)

// Options are the options of a search.
type Options struct {
	Seeds      int           // number of pooled seeds: SeedBase+1 … SeedBase+Seeds
	SeedBase   uint64        // 0, unless the arrivals must differ from those on which the policy was tuned
	Span       time.Duration // simulated time per run
	Ctrl, Data sim.Duration
	Known      bool    // tell policies the true rates
	Precision  float64 // of the goodput, relative
	BadMax     float64 // largest share of bad requests of each model
}

// DefaultOptions are five seeds of 30 simulated seconds, with 1 % bad requests.
func DefaultOptions() Options {
	return Options{Seeds: 5, Span: 30e9, Precision: 0.0003, BadMax: 0.01}
}

// Workload is a setting's arrivals at every rate, drawn once.
type Workload struct {
	Setting
	models []sim.Model
	kinds  []uint8 // by GPU: its sub-cluster; nil: a single one
	units  []*arrivals.Unit
	o      Options
	bufs   sync.Pool
	ctx    context.Context // searches stop when it ends; nil: never
}

// Prepare draws the arrivals of all seeds, for rates up to rateMax.
func Prepare(s Setting, o Options, rateMax float64) (*Workload, error) {
	w := &Workload{Setting: s, o: o, units: make([]*arrivals.Unit, o.Seeds)}
	homes, kinds, err := s.part()
	if err != nil {
		return nil, err
	}
	w.kinds = kinds

	for i, e := range s.Models {
		p, err := e.Profile()
		if err != nil {
			return nil, err
		}
		w.models = append(w.models, sim.Model{Name: e.Name, Profile: p, SLO: sim.Duration(e.SLO)})
		if homes != nil {
			w.models[i].SubCluster = uint32(homes[i])
		}
	}

	var wg sync.WaitGroup
	for i := range w.units {
		wg.Go(func() {
			// Draw more than the expected number, with a margin for the rarest model: too short a draw cannot serve
			// the rate.
			w.units[i] = arrivals.NewUnit(w.o.SeedBase+uint64(i+1), s.Gaps, s.Share, rateMax*o.Span.Seconds()*1.001+50/minShare(s.Share))
		})
	}
	wg.Wait()
	return w, nil
}

func minShare(share []float64) float64 {
	m := share[0]
	for _, s := range share {
		m = min(m, s)
	}
	return m
}

// World returns the world of seed i, from 0, at a rate.
func (w *Workload) World(i int, rate float64, buf []arrivals.Arrival) *sim.World {
	models := append([]sim.Model(nil), w.models...)
	if w.o.Known {
		for k := range models {
			models[k].Rate = rate * w.Share[k]
		}
	}

	return &sim.World{Models: models, GPUs: w.GPUs, Kinds: w.kinds, Ctrl: w.o.Ctrl + w.Ctrl, Data: w.o.Data, Arrivals: w.units[i].At(rate, w.o.Span, buf)}
}

// Sum is the outcome of all seeds at one rate.
type Sum struct {
	Total, Bad []int   // per model
	Busy       float64 // share of the GPUs' time
	Spare      float64 // likewise, of spare work
	Batches    int
	SizeSum    []int // SizeSum[b]: requests that ran in batches of b
}

// BadShare returns the worst model's share of bad requests, and the mean over all requests.
func (s *Sum) BadShare() (worst, mean float64) {
	n, bad := 0, 0
	for m := range s.Total {
		if s.Total[m] > 0 {
			worst = max(worst, float64(s.Bad[m])/float64(s.Total[m]))
		}
		n += s.Total[m]
		bad += s.Bad[m]
	}
	return worst, float64(bad) / float64(max(1, n))
}

// Run runs all seeds at one rate and pools them.
func (w *Workload) Run(policy Policy, rate float64) *Sum {
	sum := &Sum{Total: make([]int, len(w.models)), Bad: make([]int, len(w.models))}
	w.eachSeed(policy, rate, nil, func(world *sim.World) {
		r := &world.Result
		for m := range r.Total {
			sum.Total[m] += r.Total[m]
			sum.Bad[m] += r.Bad[m]
		}

		// GPUs may be busy beyond the last arrival; that time counts in their total, too.
		end := sim.Time(w.o.Span)
		for g := range w.GPUs {
			end = max(end, world.FreeAt(int32(g)))
		}
		sum.Busy += float64(r.Busy) / (float64(w.GPUs) * float64(end) * float64(w.o.Seeds))
		sum.Spare += float64(r.Spare.Time) / (float64(w.GPUs) * float64(end) * float64(w.o.Seeds))

		sum.Batches += r.Batches
		for len(sum.SizeSum) < len(r.SizeSum) {
			sum.SizeSum = append(sum.SizeSum, 0)
		}
		for b, n := range r.SizeSum {
			sum.SizeSum[b] += n
		}
	})
	return sum
}

// Policy puts a scheduling policy in charge of a world.
type Policy struct {
	Name string
	New  func(*sim.World) sim.Server
}

// eachSeed runs the seeds on all cores and calls take under a lock. spare limits the bad requests per model over all
// seeds; the runs stop and eachSeed returns false when a model exceeds it.
func (w *Workload) eachSeed(policy Policy, rate float64, spare []int, take func(*sim.World)) bool {
	var mu sync.Mutex
	var wg sync.WaitGroup
	ok := true

	turn := make(chan int, w.o.Seeds)
	for i := range w.o.Seeds {
		turn <- i
	}
	close(turn)

	for range min(w.o.Seeds, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for i := range turn {
				buf, _ := w.bufs.Get().(*[]arrivals.Arrival)
				if buf == nil {
					buf = new([]arrivals.Arrival)
				}
				world := w.World(i, rate, *buf)

				// One failing seed decides the rate: skip the others.
				mu.Lock()
				world.Spare = append([]int(nil), spare...)
				stop := !ok || w.ctx != nil && w.ctx.Err() != nil
				ok = ok && !stop
				mu.Unlock()
				if stop {
					return
				}

				r := world.Run(policy.New(world))
				mu.Lock()
				for m := range spare {
					spare[m] -= r.Bad[m]
					ok = ok && spare[m] >= 0
				}
				if take != nil {
					take(world)
				}
				mu.Unlock()

				// Reuse the arrivals' memory for the next world: it is the largest part of it.
				*buf = world.Arrivals
				w.bufs.Put(buf)
			}
		})
	}

	wg.Wait()
	return ok
}

// isGood reports whether every model meets its SLO at a rate.
func (w *Workload) isGood(policy Policy, rate float64) bool {
	// The number of bad requests that each model may have is known before the run, so a bad rate ends early.
	spare := make([]int, len(w.models))
	k := 1e9 / rate
	for _, u := range w.units {
		for m, n := range u.Count(w.o.Span, k, len(w.models)) {
			spare[m] += n
		}
	}
	for m := range spare {
		spare[m] = int(float64(spare[m]) * w.o.BadMax)
	}
	return w.eachSeed(policy, rate, spare, nil)
}

// Search returns the highest rate, by bisection, at which every model keeps at least 1−BadMax of its requests within
// its SLO; 0 if the policy fails at a five-hundredth of the capacity. A positive guess narrows the start.
func (w *Workload) Search(policy Policy, guess float64) float64 {
	hi := w.Capacity() * 1.02
	lo := 0.0

	// Steps that grow threefold bracket the goodput around the guess; most guesses are within a percent.
	if guess > 0 {
		for k := 0.01; ; k *= 3 {
			r := guess * (1 + k)
			if r >= hi || !w.isGood(policy, r) {
				hi = min(hi, r)
				break
			}
			lo = r
		}
		for k := 0.01; lo == 0 && guess*(1-k) > 0; k *= 3 {
			if r := guess * (1 - k); w.isGood(policy, r) {
				lo = r
			} else {
				hi = r
			}
		}
	}

	for hi-lo > hi*w.o.Precision && hi > w.Capacity()/500 {
		if mid := (lo + hi) / 2; w.isGood(policy, mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}
