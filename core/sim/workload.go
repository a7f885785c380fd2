package sim

import (
	"math"
	"math/rand/v2"
	"sort"
)

// Gaps is the distribution of the time between a model's requests.
type Gaps struct {
	// Shape of the Gamma distribution: 1 is Poisson, smaller is burstier, +Inf evenly spaced with
	// a random phase.
	Shape float64
}

// Poisson arrivals.
var Poisson = Gaps{Shape: 1}

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

// Unit is a workload at a total rate of one request per second: scaled by 1/rate it is the
// workload at any rate, with the same order of requests.
type Unit struct {
	at    []float64 // seconds, ascending
	model []int32
	end   float64 // seconds: all arrivals before it are there
}

// NewUnit draws n requests in expectation. Each model is an independent renewal process with its
// share of the rate.
func NewUnit(seed uint64, g Gaps, share []float64, n float64) *Unit {
	u := &Unit{end: n}
	for m, s := range share {
		rng := rand.New(rand.NewPCG(seed, uint64(m)))
		mean := 1 / s
		t := mean * rng.Float64() // a random phase, so that even arrivals do not march in step
		if !math.IsInf(g.Shape, 1) {
			t = mean * g.draw(rng)
		}
		for t < n {
			u.at = append(u.at, t)
			u.model = append(u.model, int32(m))
			t += mean * g.draw(rng)
		}
	}
	sort.Sort((*byTime)(u))
	return u
}

// At returns the arrivals of the first span at a rate in requests/s, written over buf.
func (u *Unit) At(rate float64, span Duration, buf []Arrival) []Arrival {
	buf = buf[:0]
	k := 1e9 / rate
	for i, t := range u.at {
		at := Time(t * k)
		if at >= Time(span) {
			return buf
		}
		buf = append(buf, Arrival{at, u.model[i]})
	}
	if float64(span)/k > u.end {
		panic("sim: the unit workload is too short for this rate and span")
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

// draw returns a gap of mean 1.
func (g Gaps) draw(rng *rand.Rand) float64 {
	switch {
	case g.Shape == 1:
		return rng.ExpFloat64()
	case math.IsInf(g.Shape, 1):
		return 1
	}
	return gamma(rng, g.Shape) / g.Shape
}

// gamma draws from Gamma(k, 1): Marsaglia and Tsang (2000), with the boost U^(1/k) for k < 1.
func gamma(rng *rand.Rand, k float64) float64 {
	if k < 1 {
		return gamma(rng, k+1) * math.Pow(1-rng.Float64(), 1/k)
	}
	d := k - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := rng.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(1-rng.Float64()) < 0.5*x*x+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}

// Count returns how many requests each of n models has before span, times scaled by k.
func (u *Unit) Count(span Time, k float64, n int) []int {
	out := make([]int, n)
	for i, t := range u.at {
		if Time(t*k) >= span {
			break
		}
		out[u.model[i]]++
	}
	return out
}
