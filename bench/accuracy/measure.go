package accuracy

import (
	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/sim"
)

// Window counts the outcomes of some requests.
type Window struct {
	Arrived, Served int
	Accuracy        float64 // sum over the served requests
}

// Drop returns 1 minus the mean accuracy of the served requests; 0 if none was served.
func (w Window) Drop() float64 {
	if w.Served == 0 {
		return 0
	}
	return 1 - w.Accuracy/float64(w.Served)
}

// Violations returns the share of requests that were not served within their SLO.
func (w Window) Violations() float64 {
	return 1 - float64(w.Served)/float64(max(1, w.Arrived))
}

func (w *Window) add(x Window) {
	w.Arrived += x.Arrived
	w.Served += x.Served
	w.Accuracy += x.Accuracy
}

// Measured holds the outcomes of a run's requests, by second of arrival and by family.
type Measured struct {
	Seconds  []Window
	Families []Window
	BySecond [][]Window // by family and second
	work     []work     // by second; see Causes
}

// recordOutcomes makes a world record its outcomes. Call it before Run.
func recordOutcomes(w *sim.World, seconds int) *Measured {
	m := &Measured{Seconds: make([]Window, seconds), Families: make([]Window, len(w.Models))}
	for range w.Models {
		m.BySecond = append(m.BySecond, make([]Window, seconds))
	}

	for _, a := range w.Arrivals {
		m.countRequests(a, Window{Arrived: 1})
	}

	// An answer counts in the second in which its request arrived; a late answer does not count.
	w.Answered = func(gpu, model, variant int32, start, finish sim.Time, requests []int32) {
		accuracy := w.Models[model].Variants[variant].Accuracy
		for _, r := range requests {
			if w.Deadline(r) >= finish {
				m.countRequests(w.Arrivals[r], Window{Served: 1, Accuracy: accuracy})
			}
		}
	}
	return m
}

func (m *Measured) countRequests(a arrivals.Arrival, x Window) {
	second := a.At / 1e9
	m.Seconds[second].add(x)
	m.Families[a.Model].add(x)
	m.BySecond[a.Model][second].add(x)
}

// Total sums all seconds.
func (m *Measured) Total() Window {
	var sum Window
	for _, w := range m.Seconds {
		sum.add(w)
	}
	return sum
}

// Drops returns the accuracy drop of each window of wide whole seconds.
func (m *Measured) Drops(wide int) []float64 {
	var out []float64
	for i := 0; i < len(m.Seconds); i += wide {
		var sum Window

		for _, w := range m.Seconds[i:min(i+wide, len(m.Seconds))] {
			sum.add(w)
		}
		out = append(out, sum.Drop())
	}
	return out
}

// LargestDrop returns the largest of Drops.
func (m *Measured) LargestDrop(wide int) float64 {
	worst := 0.0
	for _, drop := range m.Drops(wide) {
		worst = max(worst, drop)
	}
	return worst
}

// WorstFamily returns the family with the largest drop over the whole run, and that drop.
func (m *Measured) WorstFamily() (family int, drop float64) {
	for f, w := range m.Families {
		if d := w.Drop(); d > drop {
			family, drop = f, d
		}
	}
	return family, drop
}
