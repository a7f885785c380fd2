package sched

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"downbeat.dev/core/profile"
)

// Limits of a Service.
const (
	VariantsMax = 64
	HomesMax    = 16
)

// Service is the target of requests: a family of variants any of which may answer, or a single model, which is a
// family of one. Each ModelID stands for one Service with one queue. Requests of one family that allow other
// variants, because they ask for one by name or for more accuracy, are another Service.
type Service struct {
	Variants []Variant // 1 to VariantsMax
	Homes    []uint32  // the sub-clusters whose GPUs serve it, 1 to HomesMax; the first where it does not matter
	Floor    float64   // least acceptable accuracy: less accurate variants are never used
	SLO      Duration  // the usual budget of a request; deadlines are the requests' own
	QueueMax int       // 0: QueueMaxDefault
	Rate     float64   // the arrival rate in requests/s if it is known; 0: estimated online
}

// Variant is one way to answer. Batch.Variant is its index in Service.Variants.
type Variant struct {
	Accuracy float64            // 0…1
	Profiles []*profile.Profile // by home; nil: it does not run there
}

// service returns a model as a family of one, in one home.
func (m *Model) service() Service {
	return Service{
		Variants: []Variant{{Profiles: []*profile.Profile{m.Profile}}}, Homes: []uint32{m.SubCluster},
		SLO: m.SLO, QueueMax: m.QueueMax, Rate: m.Rate,
	}
}

// check returns an error for an invalid service; the error names the field.
func (s *Service) check(id ModelID) error {
	// Ids index tables, so memory bounds them.
	if id >= IDLimit {
		return fmt.Errorf("sched: model %d: want an id below %d", id, IDLimit)
	}
	if err := s.checkHomes(id); err != nil {
		return err
	}
	quickest, err := s.checkVariants(id)
	if err != nil {
		return err
	}

	switch {
	case !(s.Rate >= 0 && s.Rate <= RateLimit):
		return fmt.Errorf("sched: model %d: rate %v, want 0 to %v requests/s", id, s.Rate, float64(RateLimit))
	case s.QueueMax < 0 || s.QueueMax > 1<<30:
		return fmt.Errorf("sched: model %d: queue maximum %d, want 0 to %d", id, s.QueueMax, 1<<30)
	case s.SLO < quickest || s.SLO > SLOLimit:
		return fmt.Errorf("sched: model %d: SLO %d ns, want at least ℓ(1) = %d ns and at most an hour", id, s.SLO, quickest)
	}
	return nil
}

func (s *Service) checkHomes(id ModelID) error {
	if len(s.Homes) < 1 || len(s.Homes) > HomesMax {
		return fmt.Errorf("sched: model %d: %d homes, want 1 to %d", id, len(s.Homes), HomesMax)
	}
	for k, sub := range s.Homes {
		if sub >= SubClusterLimit {
			return fmt.Errorf("sched: model %d: sub-cluster %d, want one below %d", id, sub, SubClusterLimit)
		}

		// The same home twice would offer one queue to the same Ranker twice.
		if slices.Contains(s.Homes[:k], sub) {
			return fmt.Errorf("sched: model %d: home %d is given twice", id, sub)
		}
	}
	return nil
}

// checkVariants returns the least ℓ(1) of the variants that may answer.
func (s *Service) checkVariants(id ModelID) (quickest Duration, err error) {
	if len(s.Variants) < 1 || len(s.Variants) > VariantsMax {
		return 0, fmt.Errorf("sched: model %d: %d variants, want 1 to %d", id, len(s.Variants), VariantsMax)
	}
	if !(s.Floor >= 0 && s.Floor <= 1) {
		return 0, fmt.Errorf("sched: model %d: accuracy floor %v, want 0 to 1", id, s.Floor)
	}

	best := 0.0
	for i := range s.Variants {
		v := &s.Variants[i]
		if !(v.Accuracy >= 0 && v.Accuracy <= 1) {
			return 0, fmt.Errorf("sched: model %d: variant %d: accuracy %v, want 0 to 1", id, i, v.Accuracy)
		}
		if len(v.Profiles) != len(s.Homes) {
			return 0, fmt.Errorf("sched: model %d: variant %d: %d profiles, want one for each of %d homes", id, i, len(v.Profiles), len(s.Homes))
		}
		for _, p := range v.Profiles {
			// Without a profile the variant does not run in this home.
			if p == nil {
				continue
			}
			best = max(best, v.Accuracy)
			if exec := Duration(p.Exec(1)); v.Accuracy >= s.Floor && (quickest == 0 || exec < quickest) {
				quickest = exec
			}
		}
	}

	switch {
	case quickest > 0:
		return quickest, nil
	case best > 0 && best < s.Floor:
		return 0, fmt.Errorf("sched: model %d: accuracy floor %v, want at most %v, the best there is", id, s.Floor, best)
	}
	return 0, fmt.Errorf("sched: model %d: profile is missing", id)
}

// AddService adds a service. It refuses ids in use and services that no request could use.
func (p *Partition) AddService(now Time, id ModelID, s Service) error {
	now = p.clock(now)
	if err := s.check(id); err != nil {
		return err
	}

	for int(id) >= len(p.index) {
		p.index, p.seqs = append(p.index, 0), append(p.seqs, 0)
	}
	if p.index[id] != 0 {
		return fmt.Errorf("sched: model %d: %w", id, ErrKnown)
	}

	// Reuse the index of a removed model; the table grows only if there is none.
	if n := len(p.free); n == 0 {
		p.models = append(p.models, model{})
		p.free = append(p.free, int32(len(p.models)-1))
		p.timers.grow(len(p.models))
	}
	at := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.index[id] = at + 1

	// Continue the sequence numbers of the id's previous model, so that its late messages count as older.
	d := &p.models[at]
	*d = model{id: id, seq: p.seqs[id], live: true, budget: s.SLO, q: queue{buf: d.q.buf}}
	p.describe(d, &s)
	d.last, d.grantAt = now, now

	// Start the rate last: it chooses variants among those that describe has written.
	d.rate.start(now, d, s.Rate)
	p.countMember(d, at)
	if p.forecasting {
		p.expectAgain(at)
		p.sendForecast(now, d, at)
	}
	return nil
}

// ChangeService gives a known service other variants, profiles, homes, SLO, floor, queue maximum or rate. Queued
// requests stay, and so do the learned values: arrival rate, gaps, usual budget, debt and margin. Requests that no
// variant can serve in time any more are dropped; those above the queue's new limit end with QueueFull, the latest
// deadlines first; and without a GPU in any home all end with NoBackend. An error changes nothing.
func (p *Partition) ChangeService(now Time, id ModelID, s Service) error {
	now = p.clock(now)
	if err := s.check(id); err != nil {
		return err
	}
	d, at := p.find(id)
	if d == nil {
		return fmt.Errorf("sched: model %d: %w", id, ErrUnknown)
	}

	// Release the tables of the former profiles after the new ones are taken: many are the same.
	before := d.homesNow(nil)
	old := *d
	p.describe(d, &s)
	p.forgetTables(&old)
	stayed := p.leaveHomes(d, before)
	if !stayed {
		d.load = 0 // it was the load of GPUs that no longer serve it
	}
	d.refitLearned(now, s.Rate)
	p.countMember(d, at)

	// Cut the queue to its new limit before settle offers the rest.
	p.dropAboveLimit(d)
	p.expectAgain(at)
	p.settleCandidate(now, d, at)
	if d.q.len() == 0 && (!stayed || d.family != nil) {
		p.withdrawCandidate(d) // tells new Rankers its demand
	}
	return nil
}

// homesNow appends the sub-clusters that serve a model.
func (m *model) homesNow(subs []uint32) []uint32 {
	if m.family == nil {
		return append(subs, m.sub)
	}
	for k := range m.family.homes {
		subs = append(subs, m.family.homes[k].sub)
	}
	return subs
}

// leaveHomes withdraws a model for good from the Rankers of former homes that are no longer its homes. It returns
// whether none of the former homes remains.
func (p *Partition) leaveHomes(m *model, former []uint32) bool {
	stayed := true
	now := m.homesNow(nil)
	for _, sub := range former {
		if !slices.Contains(now, sub) {
			p.sendGone(m, sub)
			stayed = false
		}
	}
	return stayed
}

// describe stores the description of a service. It keeps the state of a family's homes that stay.
func (p *Partition) describe(d *model, s *Service) {
	d.slo, d.queueMax = s.SLO, int32(s.QueueMax)
	if d.queueMax == 0 {
		d.queueMax = QueueMaxDefault
	}

	f := &family{part: p, asked: true}
	if d.family != nil {
		f.rateSteps, f.listed = d.family.rateSteps, d.family.listed
	}
	for k, sub := range s.Homes {
		// Skip a home where no variant may answer.
		h := home{sub: sub, residents: p.residentsOf(d, s, k), patience: math.MaxInt64}
		if len(h.residents) == 0 {
			continue
		}
		if d.family != nil {
			if old := d.family.homeIn(sub); old != nil {
				h.served = old.served
			}
		}
		h.told = 1 // its Ranker may have a candidate
		f.homes = append(f.homes, h)
	}

	first := &f.homes[0]
	d.family, d.sub, d.execution = f, first.sub, first.residents[0].execution
	d.soonest = d.lead[1]
	for k := range f.homes {
		d.soonest = min(d.soonest, f.homes[k].residents[0].lead[1])
	}

	// A tentative schedule is needed only for a choice of homes.
	if len(f.homes) > 1 && p.places == nil {
		p.places = &places{due: Never}
	}

	// Without a choice the service takes the path of a plain model.
	if len(f.homes) == 1 && len(first.residents) == 1 {
		d.family = nil
	}
}

// residentsOf returns the variants that may answer in the k-th home, the quickest first and, among equals, the less
// accurate first.
func (p *Partition) residentsOf(d *model, s *Service, k int) (all []resident) {
	for i := range s.Variants {
		v := &s.Variants[i]
		if v.Profiles[k] == nil || v.Accuracy < s.Floor {
			continue
		}
		t := p.tablesOf(v.Profiles[k])
		all = append(all, resident{accuracy: v.Accuracy, cheapestUpTo: t.cheapestUpTo, execution: execution{
			lead: t.lead, exec: t.exec, target: 1, variant: uint16(i), prof: v.Profiles[k],
			max: min(int32(v.Profiles[k].Max()), d.queueMax), // do not wait for a batch larger than the queue
		}})
	}
	slices.SortStableFunc(all, func(a, b resident) int {
		return cmp.Or(cmp.Compare(a.exec[1], b.exec[1]), cmp.Compare(a.accuracy, b.accuracy))
	})

	for i := 1; i < len(all); i++ {
		all[i].below = max(all[i-1].below, all[i-1].accuracy)
	}
	return all
}
