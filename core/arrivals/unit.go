package arrivals

import (
	"math"
	"math/rand/v2"
	"sort"
	"time"
)

// Even returns equal shares for n models.
func Even(n int) []float64 { return Zipf(n, 0) }

// Zipf returns shares proportional to 1/rank^s.
func Zipf(n int, s float64) []float64 {
	out := make([]float64, n)
	sum := 0.0
	for i := range out {
		out[i] = math.Pow(float64(i+1), -s)
		sum += out[i]
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

// Arrival is one request: its time since the start and the index of its model.
type Arrival struct {
	At    time.Duration
	Model int32
}

// Unit is a workload with a total rate of one request per second. Scaled by 1/rate it gives the workload at any rate,
// with the same order of requests.
type Unit struct {
	at    []float64 // seconds, ascending
	model []int32
	end   float64 // seconds; at is complete up to here
}

// NewUnit draws n requests on average. Each model is an independent renewal process with its share of the rate.
func NewUnit(seed uint64, g Gaps, share []float64, n float64) *Unit {
	u := &Unit{end: n}
	for m, s := range share {
		rng := rand.New(rand.NewPCG(seed, uint64(m)))
		mean := 1 / s
		t := mean * rng.Float64() // a random phase, so that evenly spaced models do not arrive together
		if !math.IsInf(g.Shape, 1) {
			t = mean * g.Draw(rng)
		}
		for t < n {
			u.at = append(u.at, t)
			u.model = append(u.model, int32(m))
			t += mean * g.Draw(rng)
		}
	}
	sort.Sort((*byTime)(u))
	return u
}

// At returns the arrivals of the first span at a rate in requests/s. It reuses buf.
func (u *Unit) At(rate float64, span time.Duration, buf []Arrival) []Arrival {
	buf = buf[:0]
	k := 1e9 / rate
	for i, t := range u.at {
		at := time.Duration(t * k)
		if at >= span {
			return buf
		}
		buf = append(buf, Arrival{at, u.model[i]})
	}
	if float64(span)/k > u.end {
		panic("arrivals: the unit workload is too short for this rate and span")
	}
	return buf
}

type byTime Unit

func (u *byTime) Len() int           { return len(u.at) }
func (u *byTime) Less(i, j int) bool { return u.at[i] < u.at[j] }
func (u *byTime) Swap(i, j int) {
	u.at[i], u.at[j] = u.at[j], u.at[i]
	u.model[i], u.model[j] = u.model[j], u.model[i]
}

// Count returns the number of requests of each of n models before span, with times scaled by k.
func (u *Unit) Count(span time.Duration, k float64, n int) []int {
	out := make([]int, n)
	for i, t := range u.at {
		if time.Duration(t*k) >= span {
			break
		}
		out[u.model[i]]++
	}
	return out
}
