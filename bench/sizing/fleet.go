// Package sizing computes the number and kind of GPUs that models need at given rates. It runs the serving scheduler
// in virtual time, with measured or published profiles, on more and more GPUs until the service is good enough.
// plan.Size gives the starting point; it considers one model at a time and uniform arrivals.
package sizing

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sim"
)

// Service is a request for capacity: a model, or a family of which any variant may answer.
type Service struct {
	Name     string
	Rate     float64 // requests/s
	SLO      time.Duration
	Variants []Variant // for a single model: one, named as the service
}

// Variant is a model that answers a service.
type Variant struct {
	Model    string
	Accuracy float64 // 0 to 1
}

// Kind is a kind of GPU, with ℓ(b) of the models that run on it.
type Kind struct {
	Name     string
	Profiles map[string]*profile.Profile
	Price    float64 // per GPU and hour; 0: unknown
}

// Options define a sufficient service, and the simulated time.
type Options struct {
	BadMax      float64 // share of each service's requests
	AccuracyMin float64 // mean over each service's answers; 0: any
	GPUsMax     int
	Gaps        arrivals.Gaps
	Ctrl, Data  time.Duration // network delays: of a message, of each input
	Seeds       int
	Span        time.Duration // per seed
}

// DefaultOptions are goodput's: 1 % bad, Poisson arrivals, no delays.
func DefaultOptions() Options {
	return Options{BadMax: 0.01, GPUsMax: 4096, Gaps: arrivals.Poisson, Seeds: 3, Span: 20 * time.Second}
}

// requestsMax bounds the requests of one seed: 16 bytes each, and about a second of computing for some millions.
const requestsMax = 20_000_000

// Validate returns an error that names an invalid field.
func (o Options) Validate() error {
	switch {
	case !(o.BadMax > 0 && o.BadMax < 1):
		return fmt.Errorf("bad share %v: want more than 0 and less than 1", o.BadMax)
	case !(o.AccuracyMin >= 0 && o.AccuracyMin <= 1):
		return fmt.Errorf("least accuracy %v: want 0 to 1", o.AccuracyMin)
	case o.GPUsMax < 1 || o.GPUsMax > 100_000:
		return fmt.Errorf("most GPUs %d: want 1 to 100000", o.GPUsMax)
	case o.Seeds < 1 || o.Seeds > 1000:
		return fmt.Errorf("seeds %d: want 1 to 1000", o.Seeds)
	case o.Span < time.Second || o.Span > time.Hour:
		return fmt.Errorf("span %v: want 1s to 1h", o.Span)
	case o.Ctrl < 0 || o.Ctrl > time.Second || o.Data < 0 || o.Data > time.Second:
		return fmt.Errorf("delays %v and %v: want 0 to 1s", o.Ctrl, o.Data)
	}
	return nil
}

// Point is the result of a number of GPUs.
type Point struct {
	GPUs     int
	Bad      float64 // share of the worst service's requests
	BadAll   float64 // of all
	Accuracy float64 // mean of all answers
	Least    float64 // mean of the least accurate service's answers
	Busy     float64 // share of the GPUs' time
	Batch    float64 // mean size
}

// good reports whether a point is good enough.
func (o *Options) good(p Point) bool { return p.Bad <= o.BadMax && p.Least >= o.AccuracyMin }

// Answer is the result of one kind of GPU.
type Answer struct {
	Kind    string
	Price   float64
	Point           // at the fewest GPUs that are good enough
	Demand  float64 // GPUs that the rates need at target batches
	Planned int     // GPUs by plan.Size, each service separately; 0: one has no plan
	Points  []Point // all tried points, by GPUs
	// Why is the reason why no number of GPUs is enough; empty: some number is.
	Why string
}

// Cost returns the price of the GPUs per hour.
func (a *Answer) Cost() float64 { return a.Price * float64(a.GPUs) }

// Size computes an answer for every kind. The cheapest comes first if all prices are known, else the one with the
// fewest GPUs; kinds that are never enough come last.
func Size(ctx context.Context, services []Service, kinds []Kind, o Options, progress func(Answer)) ([]Answer, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if len(kinds) == 0 {
		return nil, errors.New("no kind of GPU: want at least one")
	}
	if err := CheckServices(services, o.Span); err != nil {
		return nil, err
	}

	var out []Answer
	priced := true
	for _, k := range kinds {
		a, err := sizeOn(ctx, services, k, o)
		if err != nil {
			return nil, err
		}
		priced = priced && k.Price > 0
		out = append(out, a)
		progress(a)
	}

	// Unless every price is known, a cost would rank known kinds against unknown ones.
	slices.SortStableFunc(out, func(a, b Answer) int {
		switch {
		case (a.Why == "") != (b.Why == ""):
			return map[bool]int{true: -1, false: 1}[a.Why == ""]
		case priced && a.Cost() != b.Cost():
			return map[bool]int{true: -1, false: 1}[a.Cost() < b.Cost()]
		}
		return a.GPUs - b.GPUs
	})
	return out, nil
}

// CheckServices returns an error if a rate, an SLO or an accuracy is out of its range, or if span holds more requests
// than one simulation takes.
func CheckServices(services []Service, span time.Duration) error {
	if len(services) == 0 {
		return errors.New("no model: want at least one with a rate")
	}

	sum := 0.0
	for _, s := range services {
		switch {
		case !(s.Rate > 0) || math.IsInf(s.Rate, 0):
			return fmt.Errorf("model %s: rate %v: want more than 0 requests/s, and a finite number", s.Name, s.Rate)
		case s.SLO <= 0 || s.SLO > profile.LatencyLimit:
			return fmt.Errorf("model %s: SLO %v: want more than 0, at most %v", s.Name, s.SLO, profile.LatencyLimit)
		case len(s.Variants) == 0:
			return fmt.Errorf("model %s: no variant answers it", s.Name)
		}

		for _, v := range s.Variants {
			if !(v.Accuracy >= 0 && v.Accuracy <= 1) {
				return fmt.Errorf("model %s, variant %s: accuracy %v: want 0 to 1", s.Name, v.Model, v.Accuracy)
			}
		}

		sum += s.Rate
	}

	if most := requestsMax / span.Seconds(); sum > most {
		return fmt.Errorf("rates sum up to %.0f requests/s: want at most %.0f over %v", sum, most, span)
	}
	return nil
}

// sizeOn finds the fewest GPUs of one kind.
func sizeOn(ctx context.Context, services []Service, k Kind, o Options) (Answer, error) {
	a := Answer{Kind: k.Name, Price: k.Price}
	if a.Why = a.plan(services, k); a.Why != "" {
		return a, nil
	}

	f := newFleet(services, k, o)

	// The demand is a lower bound; double the number until it is enough, or never will be.
	low, high := 0, max(1, int(math.Ceil(a.Demand)))
	for {
		high = min(high, o.GPUsMax)
		p, err := f.try(ctx, high)
		if err != nil {
			return a, err
		}

		if o.good(p) {
			break
		}
		if low = high; high == o.GPUsMax {
			a.Why = fmt.Sprintf("%d GPUs are not enough: %.2f %% bad, accuracy %.4f", high, 100*p.Bad, p.Least)
			a.Points = f.sorted()
			return a, nil
		}
		high *= 2
	}

	// high is enough, low is not: bisect.
	var failed error
	n := low + 1 + sort.Search(high-low-1, func(i int) bool {
		p, err := f.try(ctx, low+1+i)
		failed = errors.Join(failed, err)
		return err != nil || o.good(p)
	})
	if failed != nil {
		return a, failed
	}

	// The neighbours show how steep the result is.
	for _, m := range []int{n - 2, n - 1, n, n + 1, n + 2} {
		if m >= 1 && m <= o.GPUsMax {
			if _, err := f.try(ctx, m); err != nil {
				return a, err
			}
		}
	}
	a.Point, a.Points = f.tried[n], f.sorted()
	return a, nil
}

// plan sets the results of core/plan without a trial. It returns a problem that no number of GPUs can solve.
func (a *Answer) plan(services []Service, k Kind) string {
	planned := true
	for _, s := range services {
		// With enough GPUs, a service would use its most accurate variant that fits.
		var best *profile.Profile
		accuracy, missing := -1.0, ""
		for _, v := range s.Variants {
			p := k.Profiles[v.Model]
			switch {
			case p == nil:
				missing = fmt.Sprintf("model %s has no profile on it", v.Model)
			case p.Exec(1) > s.SLO:
				missing = fmt.Sprintf("model %s takes %v for one request, its SLO is %v", v.Model, p.Exec(1), s.SLO)
			case v.Accuracy > accuracy:
				best, accuracy = p, v.Accuracy
			}
		}
		if best == nil {
			return missing
		}

		cost, _, err := plan.Cost(best, s.SLO, s.Rate)
		if err != nil {
			return s.Name + ": " + err.Error()
		}
		a.Demand += s.Rate * cost
		if size, err := plan.Size(best, s.SLO, s.Rate, plan.DefaultTargets()); err == nil {
			a.Planned += size.GPUs
		} else {
			planned = false
		}
	}

	// A sum that omits a service would look like a plan for all.
	if !planned {
		a.Planned = 0
	}
	return ""
}

// haveNoFamilies reports whether all services are single models.
func haveNoFamilies(services []Service) bool {
	return !slices.ContainsFunc(services, func(s Service) bool { return len(s.Variants) > 1 })
}

// simService returns a service as the simulator's Model.
func simService(s Service, k Kind, families bool) sim.Model {
	m := sim.Model{Name: s.Name, SLO: sim.Duration(s.SLO)}
	if !families {
		m.Profile = k.Profiles[s.Variants[0].Model]
		return m
	}

	for _, v := range s.Variants {
		m.Variants = append(m.Variants, sim.Variant{Name: v.Model, Accuracy: v.Accuracy, Profiles: []*profile.Profile{k.Profiles[v.Model]}})
	}
	return m
}
