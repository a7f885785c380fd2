package engine

import (
	"slices"
	"strings"
	"time"

	"downbeat.dev/core/sched"
)

// Explanation reports the price of GPU time and why families are answered as they are. Rates are in requests/s,
// prices in units of accuracy per request for a second of a GPU, shares 0 to 1.
type Explanation struct {
	Kinds    []KindExplanation   `json:"kinds"`
	Families []FamilyExplanation `json:"families"`
	Spare    []SpareExplanation  `json:"spare,omitempty"`
}

// KindExplanation reports the price of one sub-cluster's GPUs.
type KindExplanation struct {
	Name        string  `json:"name"`
	GPUs        int     `json:"gpus"`
	Price       float64 `json:"price"`
	PriceMinute float64 `json:"price_last_minute"`  // mean of the last minute
	Planned     float64 `json:"price_planned"`      // before the discount for idle GPU time
	Bad         float64 `json:"bad_share"`          // share of the families' requests in the last second
	Busy        float64 `json:"busy_share"`         // of the GPUs' time, granted since the last renewal; at most 1
	Others      float64 `json:"demand_others_gpus"` // of models without a choice
	Learning    float64 `json:"bought_share"`       // share of the GPUs' time bought by learners (learn_share); less if floors need it
	id          uint32
}

// FamilyExplanation reports how a family is served, or one class of it: the answers that reach a floor.
type FamilyExplanation struct {
	Family   string    `json:"family"`
	Floor    float64   `json:"floor"`
	Asked    bool      `json:"floor_asked"` // of requests with a floor of their own; false: of those without
	Rate     float64   `json:"rate"`
	Queued   int       `json:"queued"`
	Lately   Answered  `json:"lately"`
	Minute   Answered  `json:"last_minute"`
	Variants []Offered `json:"variants"`
	Next     *NextCost `json:"one_more"` // nil: no variant would answer it
	Why      string    `json:"reason,omitempty"`
}

// Answered counts the outcomes of a family's requests in some time.
type Answered struct {
	Seconds  float64          `json:"seconds"`
	Answers  uint64           `json:"answers"`  // requests that a backend has answered
	Accuracy float64          `json:"accuracy"` // mean over answers
	Variants []AnsweredByOne  `json:"variants"`
	Drops    []DropsByOneRule `json:"drops"`
}

// AnsweredByOne counts one variant's answers.
type AnsweredByOne struct {
	Model    string  `json:"model"`
	Version  string  `json:"version"`
	Accuracy float64 `json:"accuracy"`
	Share    float64 `json:"share"`
}

// DropsByOneRule counts the requests that one rule dropped.
type DropsByOneRule struct {
	Rule     string `json:"rule"`
	Reason   string `json:"reason"` // the reason told to frontends
	Text     string `json:"text,omitempty"`
	Requests uint64 `json:"requests"`
}

// Offered is a variant in a sub-cluster, and whether the scheduler intends to use it there now.
type Offered struct {
	Model    string  `json:"model"`
	Version  string  `json:"version"`
	Accuracy float64 `json:"accuracy"`
	Kind     string  `json:"kind,omitempty"` // empty: in all
	Batch    int     `json:"batch,omitempty"`
	GPUTime  float64 `json:"gpu_ms,omitempty"` // per request, in batches of that size
	Intended bool    `json:"intended"`
	LeftOut  string  `json:"left_out,omitempty"` // why it is not used
}

// NextCost is the variant that one more request would get, and its cost.
type NextCost struct {
	Model   string  `json:"model"`
	Version string  `json:"version"`
	Kind    string  `json:"kind"`
	GPUTime float64 `json:"gpu_ms"`
	Cost    float64 `json:"cost"` // its GPU time times the price, in units of accuracy
}

// Explain reports the current prices, and for every family what determines how it is answered.
func (e *Engine) Explain() (x Explanation, err error) {
	err = e.runInRegistry(func() { x = e.reg.explain() })
	return x, err
}

func (g *registry) explain() Explanation {
	now := g.e.clock.Now()
	x := Explanation{Kinds: g.explainKinds(now), Families: []FamilyExplanation{}}
	for _, m := range g.models {
		if m.class != nil && m.info.Name != "" && g.wasServed(m.class.of) {
			x.Families = append(x.Families, g.explainClass(now, m))
		}
	}
	x.Families = append(x.Families, g.neverServed()...)
	x.Spare = g.explainSpare()
	return x
}

// neverServed returns the families that have a reason and have not been served since the start.
func (g *registry) neverServed() (all []FamilyExplanation) {
	for name, f := range g.families {
		if !g.wasServed(f) && f.why != "" {
			nothing := Answered{Variants: []AnsweredByOne{}, Drops: []DropsByOneRule{}}
			all = append(all, FamilyExplanation{Family: name, Floor: g.e.o.Floors[name], Why: f.why, Lately: nothing, Minute: nothing, Variants: g.notLoaded(name)})
		}
	}

	// Map order is random.
	slices.SortFunc(all, func(a, b FamilyExplanation) int { return strings.Compare(a.Family, b.Family) })
	return all
}

func (g *registry) explainKinds(now sched.Time) []KindExplanation {
	p, kinds := &g.pricing, []KindExplanation{}

	// Prices younger than a minute are averaged since they began.
	slot, at := p.marks.markBefore(now, lastMinute)

	for k := range p.homes {
		h := &p.homes[k]
		kind := KindExplanation{Name: g.clusters[h.SubCluster].label, GPUs: h.GPUs, Price: h.Price, PriceMinute: h.Price, Planned: h.Planned,
			Bad: h.BadShare, Busy: h.Occupied(), Others: h.Others, Learning: h.Learning, id: h.SubCluster}
		for i := range p.subs {
			s := &p.subs[i]
			if span := p.at.Sub(max(at, s.since)); s.number == h.SubCluster && span > 0 {
				kind.PriceMinute = (s.paid - s.paidAt[slot]) / time.Duration(span).Seconds()
			}
		}
		kinds = append(kinds, kind)
	}
	return kinds
}

// explainClass explains one class of a family.
func (g *registry) explainClass(now sched.Time, m *entry) FamilyExplanation {
	id := sched.ModelID(m.info.ID)
	x := FamilyExplanation{Family: m.info.Name, Floor: m.class.service.Floor, Asked: m.info.ID != m.class.of.classes[0], Why: m.class.of.why}
	if !m.served() && x.Why == "" {
		x.Why = "no backend serves a variant"
	}

	// One lock covers all numbers of a class, so they are consistent.
	p := g.e.partition(id)
	p.mu.Lock()
	x.Rate, x.Queued = p.s.RateOf(id), p.s.Queued(id)
	ways, budget := p.s.Ways(id, nil), time.Duration(p.s.BudgetOf(id))
	x.Lately = g.answersOf(p, m, now, lately)
	x.Minute = g.answersOf(p, m, now, lastMinute)
	p.mu.UnlockBehind()

	if m.served() {
		x.Variants, x.Next = g.explainVariants(m, ways, budget)
	}
	x.Variants = append(x.Variants, g.notLoaded(m.info.Name)...)
	return x
}

// answersOf returns the outcomes of a class's requests over at least a span. The partition's lock is held.
func (g *registry) answersOf(p *partition, m *entry, now sched.Time, span sched.Duration) Answered {
	slot, at := g.pricing.marks.markBefore(now, span)
	x := Answered{Seconds: time.Duration(now.Sub(max(at, m.since))).Seconds(), Variants: []AnsweredByOne{}, Drops: []DropsByOneRule{}}
	a := p.answersOf(m.info.ID)
	if a == nil {
		return x
	}

	requests, dropped := a.since(slot, &p.models[m.info.ID])
	for _, n := range requests {
		x.Answers += n
	}

	// Variants without answers are left out here; the list of offers has them.
	for i, n := range requests {
		if n > 0 {
			v := &g.models[a.counts[i].model].info
			share := float64(n) / float64(x.Answers)
			x.Variants = append(x.Variants, AnsweredByOne{v.Name, v.Version, v.Accuracy, share})
			x.Accuracy += share * v.Accuracy
		}
	}

	for rule, n := range dropped {
		if n > 0 {
			name, reason, text := describeRule(rule)
			x.Drops = append(x.Drops, DropsByOneRule{name, reason, text, n})
		}
	}
	return x
}
