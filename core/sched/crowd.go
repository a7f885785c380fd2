package sched

import "math"

// Crowd sums up the plain models that share a sub-cluster's GPUs. Waiting for one more request is free only if a GPU is
// free at the end of the wait. Where many models share few GPUs it often is not: all are in batches, and the next one
// that ends is further away than a batch may be late. There nobody waits.
type Crowd struct {
	Models  int
	Demand  float64 // Σ over these, in millionths of a GPU
	Spans   float64 // Σ demand·ℓ(T)
	Leeways float64 // Σ demand·ln(leeway)
	Bursts  float64 // Σ demand·burstiness
	Strong  int32   // models that batch well
	// Families counts the families that intend to be served here. They are no part of the other sums.
	Families int32
}

// isEmpty reports whether nothing is counted.
func (c *Crowd) isEmpty() bool { return c.Models == 0 && c.Families == 0 }

// crowd is what a Partition knows of a sub-cluster's Crowd. A candidate's rank depends on it, so that all Partitions
// must come to one judgement, whichever models are theirs.
type crowd struct {
	own, others Crowd
	dense       bool // nobody waits
	bursty      bool // requests come in bursts
	loose       bool // nobody waits for the rest of a burst, since no model batches well
}

// member is a model's part in its crowd.
type member struct {
	sub uint32
	Crowd
}

// leeway returns how late a batch of the target size may be: one request of it is lost for each slope after its
// frontrun.
func (x *execution) leeway() float64 {
	t := x.target
	return float64(t) * float64(x.exec[t+1]-x.exec[t])
}

// weigh brings a model's part in the crowd of its sub-cluster up to date with its rate.
func (p *Partition) weigh(m *model, at int32) {
	for int(at) >= len(p.members) {
		p.members = append(p.members, member{})
	}
	for int(m.sub) >= len(p.crowds) {
		p.crowds = append(p.crowds, crowd{})
	}

	// Services with a choice of variants or homes are placed ahead of time, so they only count.
	if m.family != nil {
		if last := &p.members[at]; last.Families == 0 || last.sub != m.sub {
			p.replaceMember(at, member{m.sub, Crowd{Families: 1}})
		}
		return
	}

	// Models that nothing is known of yet weigh next to nothing, but do: before the first rates they are all there is.
	demand := float64(max(1, m.rate.demand))
	part := Crowd{
		Models: 1, Demand: demand, Spans: demand * float64(m.exec[m.target]),
		Leeways: demand * math.Log(max(1, m.leeway())), Bursts: demand * m.gaps.burstiness(m.rate.perNS),
	}
	if m.batchesWell() {
		part.Strong = 1
	}
	p.replaceMember(at, member{m.sub, part})
}

// unweigh takes a model's part out of its crowd.
func (p *Partition) unweigh(at int32) {
	if int(at) < len(p.members) {
		p.replaceMember(at, member{})
	}
}

// replaceMember puts one part in the place of another, and judges each crowd that this changes once.
func (p *Partition) replaceMember(at int32, next member) {
	last := p.members[at]
	p.members[at] = next

	if !last.isEmpty() {
		own := &p.crowds[last.sub].own
		own.add(last.Crowd, -1)

		// What rounding has left goes with the last one.
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

// add adds another's sums by times: −1 takes them out.
func (c *Crowd) add(x Crowd, by float64) {
	c.Models += int(by) * x.Models
	c.Demand += by * x.Demand
	c.Spans += by * x.Spans
	c.Leeways += by * x.Leeways
	c.Bursts += by * x.Bursts
	c.Strong += int32(by) * x.Strong
	c.Families += int32(by) * x.Families
}

// AddCrowds adds the sums of this Partition's models to those of others, by sub-cluster, and returns them.
func (p *Partition) AddCrowds(sums []Crowd) []Crowd {
	for len(sums) < len(p.crowds) {
		sums = append(sums, Crowd{})
	}
	for sub := range p.crowds {
		sums[sub].add(p.crowds[sub].own, 1)
	}
	return sums
}

// SetCrowds tells the sums over all Partitions, by sub-cluster, as AddCrowds has put them together. They are in force
// until they are told again, and what changes in this Partition meanwhile counts on top. A Partition that is alone
// need not be told.
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
