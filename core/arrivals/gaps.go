package arrivals

import (
	"math"
	"math/rand/v2"
)

// Gaps is the distribution of the time between a model's requests.
type Gaps struct {
	// Shape of the Gamma distribution: 1 is Poisson, smaller is burstier, +Inf is evenly spaced with a random phase.
	Shape float64
}

// Poisson is a Poisson process.
var Poisson = Gaps{Shape: 1}

// Draw returns a gap of mean 1.
func (g Gaps) Draw(rng *rand.Rand) float64 {
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
