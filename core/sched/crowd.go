package sched

import "math"

// Crowd describes the plain models that share a sub-cluster's GPUs. Waiting for one more request is free only if a GPU
// is free when the wait ends. If many models share few GPUs, often none is: all GPUs are executing batches, and the next
// one becomes free too late. Then no model waits.
type Crowd struct {
	Models  int
	Demand  float64 // Σ of their demands, in millionths of a GPU
	Spans   float64 // Σ demand·ℓ(T)
	Leeways float64 // Σ demand·ln(leeway)
	Bursts  float64 // Σ demand·burstiness
	Strong  int32   // models that batch well
	Fair    int32   // models that batch fairly or well
	// Families is the number of families whose main home is here. The other fields do not include them.
	Families int32
}

// isEmpty reports whether the Crowd counts no service.
func (c *Crowd) isEmpty() bool { return c.Models == 0 && c.Families == 0 }

// crowd is a Partition's view of a sub-cluster's Crowd. The rank of candidates depends on it, so all Partitions must
// judge alike, whichever models they hold.
type crowd struct {
	own, others Crowd
	dense       bool // no model waits
	bursty      bool // requests arrive in bursts
	loose       bool // no model waits for the rest of a burst, because none batches well
}

// member is one model's part of its crowd.
type member struct {
	sub uint32
	Crowd
}

// leeway returns how late a batch of the target size may start: after its frontrun it loses one request per slope.
func (x *execution) leeway() float64 {
	t := x.target
	return float64(t) * float64(x.exec[t+1]-x.exec[t])
}

// countMember updates a model's part of its sub-cluster's crowd after its rate has changed.
func (p *Partition) countMember(m *model, at int32) {
	for int(at) >= len(p.members) {
		p.members = append(p.members, member{})
	}
	for int(m.sub) >= len(p.crowds) {
		p.crowds = append(p.crowds, crowd{})
	}

	// Families are placed ahead of time, so only their number matters.
	if m.family != nil {
		if last := &p.members[at]; last.Families == 0 || last.sub != m.sub {
			p.replaceMember(at, member{m.sub, Crowd{Families: 1}})
		}
		return
	}

	// A model without a known rate counts next to nothing, but not 0: at the start there are only such models.
	demand := float64(max(1, m.rate.demand))
	part := Crowd{
		Models: 1, Demand: demand, Spans: demand * float64(m.exec[m.target]),
		Leeways: demand * math.Log(max(1, m.leeway())), Bursts: demand * m.gaps.burstiness(m.rate.perNS),
	}
	gain := m.batchGain()
	if gain >= fairFrom {
		part.Fair = 1
	}
	if gain >= strongFrom {
		part.Strong = 1
	}
	p.replaceMember(at, member{m.sub, part})
}

// uncountMember removes a model's part from its crowd.
func (p *Partition) uncountMember(at int32) {
	if int(at) < len(p.members) {
		p.replaceMember(at, member{})
	}
}

// replaceMember replaces a model's part, and judges each crowd that this changes once.
func (p *Partition) replaceMember(at int32, next member) {
	last := p.members[at]
	p.members[at] = next

	if !last.isEmpty() {
		own := &p.crowds[last.sub].own
		own.add(last.Crowd, -1)

		// The last model takes the rounding errors with it.
		if own.Models == 0 {
			*own = Crowd{Families: own.Families}
		}
		if next.isEmpty() || next.sub != last.sub {
			p.judgeCrowd(last.sub)
		}
	}
	if !next.isEmpty() {
		p.crowds[next.sub].own.add(next.Crowd, 1)
		p.judgeCrowd(next.sub)
	}
}

// add adds the sums of x, multiplied by by: 1 adds them, −1 removes them.
func (c *Crowd) add(x Crowd, by float64) {
	c.Models += int(by) * x.Models
	c.Demand += by * x.Demand
	c.Spans += by * x.Spans
	c.Leeways += by * x.Leeways
	c.Bursts += by * x.Bursts
	c.Strong += int32(by) * x.Strong
	c.Fair += int32(by) * x.Fair
	c.Families += int32(by) * x.Families
}

// AddCrowds adds the crowds of this Partition's models to sums, by sub-cluster, and returns sums.
func (p *Partition) AddCrowds(sums []Crowd) []Crowd {
	for len(sums) < len(p.crowds) {
		sums = append(sums, Crowd{})
	}
	for sub := range p.crowds {
		sums[sub].add(p.crowds[sub].own, 1)
	}
	return sums
}

// SetCrowds sets the sums over all Partitions, by sub-cluster, as AddCrowds computes them. They hold until the next
// call; changes in this Partition count in addition. A single Partition needs no SetCrowds.
func (p *Partition) SetCrowds(sums []Crowd) {
	for sub := range p.crowds {
		c := &p.crowds[sub]
		c.others = Crowd{}
		if sub < len(sums) {
			c.others = sums[sub]
			c.others.add(c.own, -1)
		}
		p.judgeCrowd(uint32(sub))
	}
}
