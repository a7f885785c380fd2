package engine

import (
	"time"

	"downbeat.dev/core/sched"
)

// Explanation says what GPU time costs and why families are answered as they are. Rates are in requests/s, prices in
// units of accuracy per request for a second of a GPU, shares 0 to 1.
type Explanation struct {
	Kinds    []KindExplanation   `json:"kinds"`
	Families []FamilyExplanation `json:"families"`
	Spare    []SpareExplanation  `json:"spare,omitempty"`
}

// KindExplanation is what the GPUs of one sub-cluster cost.
type KindExplanation struct {
	Name        string  `json:"name"`
	GPUs        int     `json:"gpus"`
	Price       float64 `json:"price"`
	PriceMinute float64 `json:"price_last_minute"` // the mean
	Planned     float64 `json:"price_planned"`     // before what is taken off while GPU time is left over
	Bad         float64 `json:"bad_share"`         // of the requests of families in the last second
	Busy        float64 `json:"busy_share"`
	Others      float64 `json:"demand_others_gpus"` // of models that have no choice
	Learning    float64 `json:"bought_share"`       // of the GPUs' time, by learners (learn_share): less where floors need it
	id          uint32
}

// FamilyExplanation is how a family is served, or the class of it whose answers are at least as accurate as a floor.
type FamilyExplanation struct {
	Family   string    `json:"family"`
	Floor    float64   `json:"floor"`
	Rate     float64   `json:"rate"`
	Queued   int       `json:"queued"`
	Lately   Answered  `json:"lately"`
	Minute   Answered  `json:"last_minute"`
	Variants []Offered `json:"variants"`
	Next     *NextCost `json:"one_more"` // nil: nobody would answer it
	Why      string    `json:"reason,omitempty"`
}

// Answered is what became of a family's requests in some time.
type Answered struct {
	Seconds  float64          `json:"seconds"`
	Answers  uint64           `json:"answers"`
	Accuracy float64          `json:"accuracy"` // the mean over answers
	Variants []AnsweredByOne  `json:"variants"`
	Drops    []DropsByOneRule `json:"drops"`
}

// AnsweredByOne is one variant's part.
type AnsweredByOne struct {
	Model    string  `json:"model"`
	Version  string  `json:"version"`
	Accuracy float64 `json:"accuracy"`
	Share    float64 `json:"share"`
}

// DropsByOneRule are the requests that one rule dropped.
type DropsByOneRule struct {
	Rule     string `json:"rule"`
	Reason   string `json:"reason"` // as frontends are told
	Text     string `json:"text,omitempty"`
	Requests uint64 `json:"requests"`
}

// Offered is a variant in a sub-cluster, and whether it is intended there now.
type Offered struct {
	Model    string  `json:"model"`
	Version  string  `json:"version"`
	Accuracy float64 `json:"accuracy"`
	Kind     string  `json:"kind,omitempty"` // empty: of all
	Batch    int     `json:"batch,omitempty"`
	GPUTime  float64 `json:"gpu_ms,omitempty"` // per request, in such batches
	Intended bool    `json:"intended"`
	LeftOut  string  `json:"left_out,omitempty"` // why it is not
}

// NextCost is what one request more would get, and cost.
type NextCost struct {
	Model   string  `json:"model"`
	Version string  `json:"version"`
	Kind    string  `json:"kind"`
	GPUTime float64 `json:"gpu_ms"`
	Cost    float64 `json:"cost"` // its GPU time at the price, in units of accuracy
}

// Explain says what GPU time costs now, and of every family what decides how it is answered.
func (e *Engine) Explain() (x Explanation, err error) {
	err = e.manage(func() { x = e.reg.explain() })
	return x, err
}

func (g *registry) explain() Explanation {
	now := g.e.clock.Now()
	x := Explanation{Kinds: g.explainKinds(now), Families: []FamilyExplanation{}}
	for _, m := range g.models {
		if m.class != nil && m.info.Name != "" {
			x.Families = append(x.Families, g.explainClass(now, m))
		}
	}
	x.Spare = g.explainSpare()
	return x
}

func (g *registry) explainKinds(now sched.Time) []KindExplanation {
	p, kinds := &g.pricing, []KindExplanation{}

	// A kind younger than a minute has a mean since it has a price.
	slot, at := p.marks.markBefore(now, lastMinute)

	for k := range p.homes {
		h := &p.homes[k]
		kind := KindExplanation{Name: g.clusters[h.SubCluster].label, GPUs: h.GPUs, Price: h.Price, PriceMinute: h.Price, Planned: h.Planned,
			Bad: h.BadShare, Busy: h.BusyShare, Others: h.Others, Learning: h.Learning, id: h.SubCluster}
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
	x := FamilyExplanation{Family: m.info.Name, Floor: m.class.service.Floor, Why: m.class.of.why}
	if !m.served() && x.Why == "" {
		x.Why = "no backend serves a variant"
	}

	// Everything of one class is read under one lock, so that its numbers fit each other.
	p := g.e.partition(id)
	p.mu.Lock()
	x.Rate, x.Queued = p.s.RateOf(id), p.s.Queued(id)
	ways, budget := p.s.Ways(id, nil), time.Duration(p.s.BudgetOf(id))
	x.Lately = g.answersOf(p, m, now, lately)
	x.Minute = g.answersOf(p, m, now, lastMinute)
	p.mu.Unlock()

	if m.served() {
		x.Variants, x.Next = g.explainVariants(m, ways, budget)
	}
	x.Variants = append(x.Variants, g.notLoaded(m.info.Name)...)
	return x
}

// answersOf tells what became of a class's requests in at least a span. The partition's lock is held.
func (g *registry) answersOf(p *partition, m *entry, now sched.Time, span sched.Duration) Answered {
	slot, at := g.pricing.marks.markBefore(now, span)
	x := Answered{Seconds: time.Duration(now.Sub(max(at, m.since))).Seconds(), Variants: []AnsweredByOne{}, Drops: []DropsByOneRule{}}
	a := p.families[m.info.ID]
	if a == nil {
		return x
	}

	requests, dropped := a.since(slot, &p.models[m.info.ID])
	for _, n := range requests {
		x.Answers += n
	}

	// Variants that answered nothing are left out: the list of what is offered has them.
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
