package load

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// Shape describes arrivals that are drawn: the same seed gives the same plan.
type Shape struct {
	Arrivals   string // poisson, constant, or gamma:SHAPE (smaller is burstier)
	Popularity string // even, or zipf:EXPONENT over the models in their order
	Rate       float64
	Span       time.Duration
	Seed       uint64
}

// planMax bounds the requests of one plan: 24 bytes each.
const planMax = 50_000_000

// Plan draws the arrivals for n models.
func (s Shape) Plan(n int) ([]Arrival, error) {
	gaps, err := s.gaps()
	if err != nil {
		return nil, err
	}
	share, err := s.share(n)
	if err != nil {
		return nil, err
	}
	if !(s.Rate > 0) || s.Span <= 0 || s.Rate*s.Span.Seconds() > planMax {
		return nil, fmt.Errorf("rate %v over %v: want a positive rate and time, at most %d requests in all", s.Rate, s.Span, planMax)
	}
	expected := s.Rate * s.Span.Seconds()
	drawn := sim.NewUnit(s.Seed, gaps, share, expected*1.01+1).At(s.Rate, sched.Duration(s.Span), nil)
	plan := make([]Arrival, len(drawn))
	for i, a := range drawn {
		plan[i] = Arrival{At: time.Duration(a.At), Model: int(a.Model)}
	}
	return plan, nil
}

func (s Shape) gaps() (sim.Gaps, error) {
	name, arg, _ := strings.Cut(s.Arrivals, ":")
	switch name {
	case "poisson":
		return sim.Poisson, nil
	case "constant":
		return sim.Gaps{Shape: math.Inf(1)}, nil
	case "gamma":
		if k, err := strconv.ParseFloat(arg, 64); err == nil && k >= 0.01 && k <= 1000 {
			return sim.Gaps{Shape: k}, nil
		}
	}
	return sim.Gaps{}, fmt.Errorf("arrivals %q: want poisson, constant, or gamma:SHAPE with a shape of 0.01 to 1000", s.Arrivals)
}

func (s Shape) share(n int) ([]float64, error) {
	name, arg, _ := strings.Cut(s.Popularity, ":")
	switch name {
	case "even":
		return sim.Even(n), nil
	case "zipf":
		if z, err := strconv.ParseFloat(arg, 64); err == nil && z >= 0 && z <= 10 {
			return sim.Zipf(n, z), nil
		}
	}
	return nil, fmt.Errorf("popularity %q: want even, or zipf:EXPONENT with an exponent of 0 to 10", s.Popularity)
}

// ReadTrace reads lines "arrival_us,model" in order of time; models are named. Empty lines and
// lines that start with # do not count. It returns the plan and the models in order of appearance.
func ReadTrace(r io.Reader) (plan []Arrival, models []string, err error) {
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || text[0] == '#' || n == 1 && text == "arrival_us,model" {
			continue
		}
		at, model, ok := strings.Cut(text, ",")
		us, err := strconv.ParseInt(at, 10, 64)
		switch {
		case !ok || err != nil || us < 0 || us > math.MaxInt64/1000 || model == "":
			return nil, nil, fmt.Errorf("line %d: %q: want arrival_us,model with a whole number of µs", n, text)
		case len(plan) > 0 && time.Duration(us)*time.Microsecond < plan[len(plan)-1].At:
			return nil, nil, fmt.Errorf("line %d: %d µs is before the line above: want the lines in order of time", n, us)
		case len(plan) == planMax:
			return nil, nil, fmt.Errorf("line %d: more than %d requests", n, planMax)
		}
		i := slices.Index(models, model)
		if i < 0 {
			if i = len(models); i == 10_000 {
				return nil, nil, fmt.Errorf("line %d: more than %d models", n, i)
			}
			models = append(models, model)
		}
		plan = append(plan, Arrival{At: time.Duration(us) * time.Microsecond, Model: i})
	}
	if err := lines.Err(); err != nil {
		return nil, nil, err
	}
	if len(plan) == 0 {
		return nil, nil, fmt.Errorf("no arrivals in it")
	}
	return plan, models, nil
}
