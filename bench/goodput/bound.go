package goodput

import (
	"math/bits"
	"runtime"
	"sort"
	"sync"

	"downbeat.dev/core/sim"
)

// Bound returns a rate in requests/s that no schedule exceeds on these arrivals, even if it knows them all in
// advance. It relaxes the problem. A batch need only be feasible by itself: its last request has arrived, its inputs
// are there, and it finishes before its first deadline on a GPU that waits for it. Of the GPUs only the total time is
// limited: all batches together take at most GPUs × (span + longest SLO). Each model may drop BadMax of its requests.
// Drops have a price μ instead of a limit, which keeps it a bound for any μ ≥ 0 (Lagrange), so the best of a few
// prices is used. Under bursts the bound is loose, because it counts GPUs that idle between bursts.
//
// Batches of consecutive requests are sufficient: if a request inside a batch is dropped, dropping the batch's first
// request instead drops as many and waits less. Profiles must be linear.
func (w *Workload) Bound() float64 {
	b := newBound(w)
	lo, hi := 0.0, w.Capacity()*1.02
	// Search a feasible rate from the top down, in steps that double.
	for step := 0.12; lo == 0; step *= 2 {
		if mid := hi * (1 - min(step, 0.9)); b.fitsRate(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}

	for hi-lo > hi*boundPrecision {
		if mid := (lo + hi) / 2; b.fitsRate(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}

// boundPrecision is the relative error of the bound above the relaxed problem's highest rate.
const boundPrecision = 0.0005

type bound struct {
	w  *Workload
	at [][][]float64 // [model][seed]: arrivals at a rate of one request/s, in seconds
	mu []float64     // by model, the last best price in seconds; 0: none yet
}

func newBound(w *Workload) *bound {
	b := &bound{w: w, at: make([][][]float64, len(w.models)), mu: make([]float64, len(w.models))}
	for m := range b.at {
		b.at[m] = make([][]float64, len(w.units))
	}

	most := w.Capacity() * 1.02

	// Arrivals at another rate are the same ones, scaled: draw them once for the highest rate, and keep them for a
	// rate of one.
	for i, u := range w.units {
		for _, a := range u.At(most, w.o.Span, nil) {
			b.at[a.Model][i] = append(b.at[a.Model][i], float64(a.At)/1e9*most)
		}
	}
	return b
}

// fitsRate reports whether the relaxed problem has a solution at a rate.
func (b *bound) fitsRate(rate float64) bool {
	span := b.w.o.Span.Seconds()
	slo := 0.0
	cost := make([]float64, len(b.at))
	var wg sync.WaitGroup

	turn := make(chan int, len(b.at))
	for m := range b.at {
		turn <- m
		slo = max(slo, b.w.Models[m].SLO.Seconds())
	}
	close(turn)

	// Models are independent in the relaxed problem, so the cores share them.
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for m := range turn {
				cost[m] = b.leastCost(m, rate, span)
			}
		})
	}

	wg.Wait()

	sum := 0.0
	for _, c := range cost {
		sum += c
	}

	// Batches of the last arrivals may run up to one SLO beyond the span.
	return sum <= float64(b.w.GPUs)*(span+slo)*float64(len(b.w.units))
}

// leastCost returns a lower bound of the GPU seconds that a model takes at a rate, over all seeds.
func (b *bound) leastCost(m int, rate, span float64) float64 {
	total := 0
	for _, at := range b.at[m] {
		total += sort.SearchFloat64s(at, span*rate)
	}

	spare := int(float64(total) * b.w.o.BadMax)
	e := b.w.Models[m]

	// The best price changes little from one rate to the next, so a narrow search near the last one suffices.
	lo, hi, steps := 0.0, (e.Alpha + e.Beta).Seconds(), 8
	if b.mu[m] > 0 {
		lo, hi, steps = b.mu[m]*0.8, min(hi, b.mu[m]*1.25), 3
	}

	best := 0.0
	for range steps {
		mu := (lo + hi) / 2
		sum, dropped := 0.0, 0
		for _, at := range b.at[m] {
			f, d := b.cheapestAt(m, at, rate, span, mu)
			sum, dropped = sum+f, dropped+d
		}

		// Every price gives a valid bound; the highest is the tightest.
		if v := sum - mu*float64(spare); v > best {
			best, b.mu[m] = v, mu
		}

		// Too many drops: raise the price.
		if dropped > spare {
			lo = mu
		} else {
			hi = mu
		}
	}
	return best
}

// cheapestAt returns the minimum of GPU seconds + mu·drops over all ways to divide one seed's requests of a model
// into batches. f(i) = min(f(i−1) + mu, min over feasible j of f(j) + ℓ(i−j)); ℓ is linear, so the inner minimum is a
// sliding-window minimum of f(j) − α·j.
func (b *bound) cheapestAt(m int, at []float64, rate, span, mu float64) (cost float64, drops int) {
	e := b.w.Models[m]
	alpha, beta, slo := e.Alpha.Seconds(), e.Beta.Seconds(), e.SLO.Seconds()
	data, ctrl := seconds(b.w.o.Data), seconds(b.w.o.Ctrl+b.w.Ctrl)

	ring := make([]cut, 1<<bits.Len(uint(e.SLO/e.Alpha)+2)) // no batch within the SLO is larger
	mask := len(ring) - 1
	head, tail, first := 0, 0, 0
	f, d := 0.0, 0

	period := 1 / rate
	slack := slo - ctrl - beta + 1e-12

	for i, t := range at {
		now := t * period
		if now >= span {
			break
		}

		// The deque holds the possible starts of a batch that ends here, cheapest first.
		g := f - alpha*float64(i)
		for tail > head && ring[(tail-1)&mask].g >= g {
			tail--
		}

		// Batches that begin before first are too late for their first request.
		for first <= i && now-at[first]*period+(alpha+data)*float64(i+1-first) > slack {
			first++
		}
		for tail > head && ring[head&mask].j < first {
			head++
		}

		// Either drop this request at the price mu …
		f += mu
		d++

		if first > i {
			continue // not even alone
		}
		ring[tail&mask] = cut{i, d - 1, g}
		tail++

		// … or end the cheapest batch that can still hold it.
		c := &ring[head&mask]
		if v := c.g + alpha*float64(i+1) + beta; v < f {
			f, d = v, c.drops
		}
	}
	return f, d
}

// cut is a boundary between batches: before request j, at cost g + α·j with this many drops.
type cut struct {
	j, drops int
	g        float64
}

func seconds(d sim.Duration) float64 { return float64(d) / 1e9 }
