package sched

import (
	vocabulary "downbeat.dev/core/model"
	"downbeat.dev/core/profile"
)

// Model is the description of a model for a Partition.
type Model struct {
	Profile    *profile.Profile
	SLO        Duration // the usual budget of a request; deadlines are the requests' own
	SubCluster uint32   // the sub-cluster whose GPUs serve it
	QueueMax   int      // 0: QueueMaxDefault
	Rate       float64  // the arrival rate in requests/s if it is known; 0: estimated online
}

// AddModel adds a model. It refuses ids in use and models that no request could use.
func (p *Partition) AddModel(now Time, id ModelID, m Model) error {
	return p.AddService(now, id, m.service())
}

// ChangeModel gives a model another profile, SLO, sub-cluster, queue maximum or rate: see ChangeService.
func (p *Partition) ChangeModel(now Time, id ModelID, m Model) error {
	return p.ChangeService(now, id, m.service())
}

// refitLearned fits the learned values to another profile and SLO, and to a given rate; 0: estimated.
func (m *model) refitLearned(now Time, perSecond float64) {
	m.budget = max(m.soonest, min(m.budget, m.slo))

	// The SLO bounds debt and margin, so a new SLO bounds them anew.
	m.debt = max(-m.slo, min(m.debt, m.slo))

	if perSecond > 0 || m.rate.fixed {
		m.rate.start(now, m, perSecond)
	} else {
		m.rate.derive(m)
	}
	m.adjustMargin(0, 0)
}

// dropAboveLimit drops the requests above a model's queue limit.
func (p *Partition) dropAboveLimit(m *model) {
	keep, why := int(m.queueMax), vocabulary.QueueFull
	if p.hasNoGPUs(m) {
		keep, why = 0, vocabulary.NoBackend
	}
	for m.q.len() > 0 && p.Queued(m.id) > keep {
		// Drop the latest deadlines: they would be served last.
		last := m.q.len() - 1
		p.drop(m.q.at(last), why)
		m.q.remove(last, &m.priorities)
	}
	if p.early > 0 {
		p.dropEarly(m, max(0, keep-m.q.len()), why)
	}
}

// sendGone tells a Ranker that a model's candidate is gone for good.
func (p *Partition) sendGone(m *model, sub uint32) {
	if p.forecasting {
		p.forecastSeq++
		p.out.Forecasts = append(p.out.Forecasts, Forecast{Model: m.id, SubCluster: sub, Seq: p.forecastSeq, Gone: true})
	}
	m.seq++
	p.out.Candidates = append(p.out.Candidates, Candidate{Model: m.id, SubCluster: sub, Seq: m.seq, Gone: true})
}

// tables hold a profile in the form that decisions read. Models with the same Profile share them, and with them their
// cache lines.
type tables struct {
	exec, lead   []Duration
	cheapestUpTo []cheapest // by the largest batch that is possible
	users        int
}

// cheapest describes the batch with the least GPU time per request among those up to some size.
type cheapest struct {
	cost  float64 // its GPU seconds per request
	size  int32   // its requests
	small int32   // the batches up to this size are not efficient beside it
}

// findCheapest fills in cheapestUpTo. A cheaper batch makes no other batch efficient, so small only grows.
func (t *tables) findCheapest() {
	best, small := 1, 0
	for n := 1; n < len(t.cheapestUpTo); n++ {
		// Products of integers are exact, and cost less than quotients.
		if int64(t.exec[n])*int64(best) < int64(t.exec[best])*int64(n) {
			best = n
		}

		cost := float64(t.exec[best]) / float64(best) / 1e9
		for !isEfficient(t.exec[small+1], cost, small+1) {
			small++
		}
		t.cheapestUpTo[n] = cheapest{cost, int32(best), int32(small)}
	}
}

// tablesOf returns a profile's tables for one more user.
func (p *Partition) tablesOf(prof *profile.Profile) *tables {
	t := p.tables[prof]
	if t == nil {
		// One size beyond the largest, because rank and frontrun read n + 1.
		n := prof.Max() + 2
		t = &tables{exec: make([]Duration, n), lead: make([]Duration, n), cheapestUpTo: make([]cheapest, n-1)}
		for b := 1; b < len(t.exec); b++ {
			t.exec[b] = Duration(prof.Exec(b))
		}
		t.findCheapest()
		p.tables[prof] = t
		renewLeads(t.lead, t.exec, p.o)
	}
	t.users++
	return t
}

// renewLeads computes how long before its end a batch must be sent.
func renewLeads(lead, exec []Duration, o Options) {
	for b := range lead {
		lead[b] = exec[b] + o.Ctrl + Duration(b)*o.Data
	}
}

// renewLeads computes the leads of every execution that may serve a model.
func (m *model) renewLeads(o Options) {
	renewLeads(m.lead, m.exec, o)
	if m.family != nil {
		for k := range m.family.homes {
			for i := range m.family.homes[k].residents {
				x := &m.family.homes[k].residents[i].execution
				renewLeads(x.lead, x.exec, o)
			}
		}
	}
	m.renewSoonest()
}

// forgetTables releases the tables of a model's profiles.
func (p *Partition) forgetTables(m *model) {
	if m.family == nil {
		p.forgetTable(m.prof)
		return
	}
	for k := range m.family.homes {
		for i := range m.family.homes[k].residents {
			p.forgetTable(m.family.homes[k].residents[i].prof)
		}
	}
}

func (p *Partition) forgetTable(prof *profile.Profile) {
	if t := p.tables[prof]; t.users > 1 {
		t.users--
	} else {
		delete(p.tables, prof)
	}
}

// RemoveModel removes a model or service; its queued requests are dropped with UnknownModel.
func (p *Partition) RemoveModel(now Time, id ModelID) {
	p.clock(now)
	m, at := p.find(id)
	if m == nil {
		return
	}
	for i := range m.q.len() {
		p.drop(m.q.at(i), vocabulary.UnknownModel)
	}
	m.q.pop(m.q.len(), &m.priorities)
	if p.early > 0 {
		p.dropEarly(m, 0, vocabulary.UnknownModel)
	}
	delete(p.earlyOf, m.id)

	// Notify Rankers before the homes are forgotten.
	for _, sub := range m.homesNow(nil) {
		p.sendGone(m, sub)
	}
	p.timers.off(at)
	p.uncountMember(at)
	p.forgetTables(m)
	m.live = false

	// Keep the last sequence number: a message under way must count as older than those of a later model.
	p.index[id], p.seqs[id] = 0, m.seq
	p.free = append(p.free, at)
}
