package scene

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Conditions are the light, the weather and the contents of a street.
type Conditions struct {
	Light      float64                // 0: moonless night, 1: noon
	Fog        float64                // 0 to 1
	Rain       float64                // 0 to 1
	Snow       float64                // 0 to 1
	Occlusion  float64                // 0 to 1: poles, bins and bushes in front
	Noise      float64                // standard deviation of sensor noise, 0 to 0.3 of full scale
	Density    float64                // mean number of objects in a street, 0 to 12
	Kinds      [KindCount]float64     // relative frequency of kinds
	Activities [ActivityCount]float64 // relative frequency of activities; a street ignores Cycling, which is its bicycles' riders'
}

// Day is a clear day with an even mix.
func Day() Conditions {
	c := Conditions{Light: 0.95, Occlusion: 0.2, Noise: 0.01, Density: 4}
	for i := range c.Kinds {
		c.Kinds[i] = 1
	}
	c.Kinds[Person] = 2

	for i := range c.Activities {
		c.Activities[i] = 1
	}
	return c
}

// Night is dark, wet and noisy.
func Night() Conditions {
	c := Day()
	c.Light, c.Rain, c.Noise, c.Occlusion = 0.2, 0.4, 0.04, 0.3
	return c
}

// Mixed draws conditions from all times of day and weathers, as for training data.
func Mixed(r *rand.Rand) Conditions {
	c := Day()
	c.Light = 0.25 + 0.75*math.Sqrt(r.Float64())
	c.Occlusion = 0.6 * r.Float64()
	c.Noise = 0.01 + 0.04*r.Float64()*r.Float64()
	c.Density = 1.5 + 4*r.Float64()

	// At most one kind of weather, and none in two of five cases.
	switch r.IntN(5) {
	case 0:
		c.Fog = 0.7 * r.Float64()
	case 1:
		c.Rain = r.Float64()
	case 2:
		c.Snow = r.Float64()
	}
	return c
}

// Check returns an error with the field, the value and what is allowed if a value is out of range.
func (c Conditions) Check() error {
	for _, f := range []struct {
		name  string
		value float64
		most  float64
	}{{"light", c.Light, 1}, {"fog", c.Fog, 1}, {"rain", c.Rain, 1}, {"snow", c.Snow, 1},
		{"occlusion", c.Occlusion, 1}, {"noise", c.Noise, 0.3}, {"density", c.Density, 12}} {
		if !(f.value >= 0 && f.value <= f.most) {
			return fmt.Errorf("%s: %v: want 0 to %v", f.name, f.value, f.most)
		}
	}

	if err := checkMix("kinds", c.Kinds[:]); err != nil {
		return err
	}
	return checkMix("activities", c.Activities[:])
}

func checkMix(name string, mix []float64) error {
	var sum float64
	for i, v := range mix {
		if !(v >= 0 && v <= 1e6) {
			return fmt.Errorf("%s[%d]: %v: want a weight from 0 to 1e6", name, i, v)
		}
		sum += v
	}
	if sum == 0 {
		return fmt.Errorf("%s: all 0: want at least one weight above 0", name)
	}
	return nil
}

// Seeded returns the generator of item n of the data set with this seed.
func Seeded(seed, n uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, n)) }

// DrawWeighted draws an index by weight; at least one weight is above 0.
func DrawWeighted(r *rand.Rand, weights []float64) int {
	var sum float64
	for _, w := range weights {
		sum += w
	}

	x := r.Float64() * sum
	for i, w := range weights {
		if x -= w; x < 0 && w > 0 {
			return i
		}
	}

	// Only rounding leads here.
	return 0
}
