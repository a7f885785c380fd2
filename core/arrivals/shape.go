package arrivals

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Shape describes random arrivals. The same seed gives the same plan.
type Shape struct {
	Arrivals   string // poisson, constant, or gamma:SHAPE (smaller is burstier)
	Popularity string // even, or zipf:EXPONENT over the models in their order
	Rate       float64
	Span       time.Duration
	Seed       uint64
}

// planMax bounds the requests of one plan, at 16 bytes each.
const planMax = 50_000_000

// Plan draws the arrivals for n models.
func (s Shape) Plan(n int) ([]Arrival, error) {
	gaps, err := ParseGaps(s.Arrivals)
	if err != nil {
		return nil, err
	}
	share, err := s.modelShares(n)
	if err != nil {
		return nil, err
	}

	if !(s.Rate > 0) || s.Span <= 0 || s.Rate*s.Span.Seconds() > planMax {
		return nil, fmt.Errorf("rate %v over %v: want a positive rate and time, at most %d requests in all", s.Rate, s.Span, planMax)
	}

	expected := s.Rate * s.Span.Seconds()
	return NewUnit(s.Seed, gaps, share, expected*1.01+1).At(s.Rate, s.Span, nil), nil
}

// ParseGaps reads poisson, constant, or gamma:SHAPE.
func ParseGaps(text string) (Gaps, error) {
	name, arg, _ := strings.Cut(text, ":")
	switch name {
	case "poisson":
		return Poisson, nil
	case "constant":
		return Gaps{Shape: math.Inf(1)}, nil
	case "gamma":
		if k, err := strconv.ParseFloat(arg, 64); err == nil && k >= 0.01 && k <= 1000 {
			return Gaps{Shape: k}, nil
		}
	}
	return Gaps{}, fmt.Errorf("arrivals %q: want poisson, constant, or gamma:SHAPE with a shape of 0.01 to 1000", text)
}

func (s Shape) modelShares(n int) ([]float64, error) {
	name, arg, _ := strings.Cut(s.Popularity, ":")
	switch name {
	case "even":
		return Even(n), nil
	case "zipf":
		if z, err := strconv.ParseFloat(arg, 64); err == nil && z >= 0 && z <= 10 {
			return Zipf(n, z), nil
		}
	}
	return nil, fmt.Errorf("popularity %q: want even, or zipf:EXPONENT with an exponent of 0 to 10", s.Popularity)
}
