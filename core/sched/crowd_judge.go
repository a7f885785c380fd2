package sched

import "math"

const (
	// crowdModels is how many models for each GPU make a crowd: fewer mostly find a GPU that others left idle.
	crowdModels = 3
	// crowdTurns is how many turns a batch must be able to be late, in the geometric mean weighted by demand, for its
	// model to wait. The cells of the grid in which waiting loses have 0.4 to 1.9, all others 2.7 and more.
	crowdTurns = 2.3
	// burstyFrom is from which burstiness on arrivals are bursts. The grid's cells have 0.30 and more with Gamma 0.1 and
	// below, at most 0.19 with 0.3, and 0 with Poisson arrivals.
	burstyFrom = 0.25
	// burstyModels is how many models for each GPU make a crowd where requests come in bursts.
	burstyModels = 1.25
	// looseFrom is the burstiness from which on models that gain little by batching do not wait, however few they are.
	// Gamma 0.3 has at least 0.16 at 50 requests/s, Poisson arrivals 0.
	looseFrom = 0.1
	// strongFrom is the ratio of ℓ(1) to the slope of ℓ from which on a model batches well: a large batch then takes at
	// most a fourth of ℓ(1) per request. VGG16, which must not wait, has 3.1, and InceptionResNetV2 4.6.
	strongFrom = 4
)

// judgeCrowd finds whether the requests of a sub-cluster come in bursts, and whether its models wait.
func (p *Partition) judgeCrowd(sub uint32) {
	if int(sub) >= len(p.crowds) {
		return
	}
	c := &p.crowds[sub]
	all := c.own
	all.add(c.others, 1)

	c.bursty = all.isBursty()
	c.dense = all.isDense(p.gpusOf(sub))
	c.loose = all.isLoose()
}

// isBursty says whether requests come in bursts, in the mean weighted by demand.
func (c *Crowd) isBursty() bool { return c.Demand > 0 && c.Bursts >= burstyFrom*c.Demand }

// isDense says whether these models must not wait on so many GPUs. A burst that is over brings nothing more to wait
// for. Other arrivals are waited for unless batches can be late by less than crowdTurns turns: when all GPUs are in
// batches the next one is free a turn later, the mean ℓ(T) of what runs divided by their number.
func (c *Crowd) isDense(gpus int) bool {
	switch {
	case gpus == 0 || c.Demand <= 0:
		return false
	case c.isBursty():
		return float64(c.Models) >= burstyModels*float64(gpus)
	case c.Models < crowdModels*gpus:
		return false
	}

	turn := c.Spans / c.Demand / float64(gpus)
	return c.Leeways/c.Demand < math.Log(crowdTurns*turn)
}

// isLoose reports whether these models, on any number of GPUs, start what a burst has brought so far instead of waiting
// for the rest of it. GPUs that idle until a batch is full are missing at the height of the burst, and if no model batches
// well, larger batches do not make up for that. A family beside them needs the GPU time that their larger batches save, at
// least for a more accurate variant (decision 0362).
func (c *Crowd) isLoose() bool {
	return c.Demand > 0 && c.Strong == 0 && c.Families == 0 && c.Bursts >= looseFrom*c.Demand
}

// batchesWell reports whether large batches take much less time per request than a batch of one.
func (x *execution) batchesWell() bool { return x.exec[1] >= strongFrom*(x.exec[2]-x.exec[1]) }

// isCrowded says whether a model's batches must not wait.
func (p *Partition) isCrowded(m *model) bool {
	if m.family != nil || int(m.sub) >= len(p.crowds) {
		return false
	}
	c := &p.crowds[m.sub]
	return c.dense || c.loose
}

// crowdRank orders candidates of a crowd, all of them ripe long before their latest start: by the latest start of the
// batch that the head's deadline still allows, plus the debt. Of a burst too long to be served the latest start of all
// n requests is past, and would come before all that can still be served in time.
func (p *Partition) crowdRank(m *model) Time {
	n := max(1, p.fit(p.now, m, &m.execution, 0, p.now))

	// If batching saves nothing, requests compete one by one: a longer queue must not start sooner.
	if p.crowds[m.sub].loose && m.isSum(n) {
		n = 1
	}
	rank := m.q.first() - Time(m.exec[n]) + Time(m.debt)

	// Of two that must start now the one with the larger slope loses fewer requests by waiting.
	if p.crowds[m.sub].bursty {
		rank += Time(m.exec[n+1]-m.exec[n]) / slopeShare
	}
	return rank / 2
}

// isSum reports whether a batch of n takes about as long as n batches of one.
func (x *execution) isSum(n int) bool {
	return float64(x.exec[n]) > (1-worthMin)*float64(n)*float64(x.exec[1])
}

// slopeShare is the part of a slope that a burst's candidate waits for: decision 0305 has what others cost.
const slopeShare = 5

// gpusOf returns how many GPUs a sub-cluster has.
func (p *Partition) gpusOf(sub uint32) int {
	if int(sub) >= len(p.gpus) {
		return 0
	}
	return int(p.gpus[sub])
}
