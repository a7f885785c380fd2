package sched

import "math"

const (
	// crowdModels is the number of models per GPU that make a crowd. Fewer models mostly find an idle GPU.
	crowdModels = 3
	// crowdTurns is the least leeway, in turns, with which models wait: the geometric mean of the leeways, weighted by
	// demand. Where waiting loses in the grid of settings, it is 0.4 to 1.9; in all other cells, 2.7 or more.
	crowdTurns = 2.3
	// burstyFrom is the burstiness from which on arrivals count as bursts. In the grid it is 0.30 or more for Gamma 0.1
	// and below, at most 0.19 for Gamma 0.3, and 0 for Poisson arrivals.
	burstyFrom = 0.25
	// burstyModels is the number of models per GPU that make a crowd if requests arrive in bursts.
	burstyModels = 1.25
	// looseFrom is the burstiness from which on models that gain next to nothing from batching do not wait, however few
	// they are. Gamma 0.5 has at least 0.05 at 40 requests/s, Poisson arrivals have 0.
	looseFrom = 0.05
	// fairLooseFrom is the same for models that batch fairly. Gamma 0.5, in which they gain by waiting, has at most
	// 0.164 at any rate; Gamma 0.3 has more than this from 80 requests/s on.
	fairLooseFrom = 0.18
	// fairFrom and strongFrom are the gains (see batchGain) from which on a model batches fairly and well. BERT has 1.02
	// and Xception 1.4, VGG16 3.1, InceptionResNetV2 4.6 and ResNet50 5.8.
	fairFrom, strongFrom = 2, 4
)

// judgeCrowd decides whether requests of a sub-cluster arrive in bursts, and whether its models wait.
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

// isBursty reports whether requests arrive in bursts, on average weighted by demand.
func (c *Crowd) isBursty() bool { return c.Demand > 0 && c.Bursts >= burstyFrom*c.Demand }

// isDense reports whether these models must not wait on this number of GPUs.
//
// With bursts, the number of models decides: after a burst there is nothing more to wait for. Otherwise models wait
// unless their leeway is less than crowdTurns turns. A turn is the time until the next GPU becomes free when all are
// busy: the mean ℓ(T) of the running batches divided by the number of GPUs.
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

// isLoose reports whether these models, on any number of GPUs, start the first requests of a burst instead of waiting
// for the rest. GPUs that idle until a batch is full are missing at the height of the burst, and if no model batches
// well, larger batches do not make up for that. The milder the bursts, the less a model may gain from batching for this to
// hold (decision 0372). If a family shares the GPUs, models wait: their larger batches save GPU time that the family can
// use for a more accurate variant (decision 0362).
func (c *Crowd) isLoose() bool {
	switch {
	case c.Demand <= 0 || c.Strong > 0 || c.Families > 0:
		return false
	case c.Fair > 0:
		return c.Bursts >= fairLooseFrom*c.Demand
	}
	return c.Bursts >= looseFrom*c.Demand
}

// batchGain returns the ratio of ℓ(1) to the slope of ℓ: in a large batch, a request takes the share 1/gain of the time
// of a batch of one.
func (x *execution) batchGain() float64 {
	return float64(x.exec[1]) / float64(max(1, x.exec[2]-x.exec[1]))
}

// isCrowded reports whether a model's batches must not wait.
func (p *Partition) isCrowded(m *model) bool {
	if m.family != nil || int(m.sub) >= len(p.crowds) {
		return false
	}
	c := &p.crowds[m.sub]
	return c.dense || c.loose
}

// crowdRank is rank for a model in a crowd, where candidates are ripe long before their latest start. It is the latest
// start of the largest batch that the head's deadline still allows, plus the debt. The latest start of all n requests
// would not do: in a burst that is too long to be served it is in the past, and the candidate would come before all that
// can still be served in time.
func (p *Partition) crowdRank(m *model) Time {
	n := max(1, p.largestBatch(p.now, m, &m.execution, 0, p.now))

	// If batching saves nothing, requests compete one by one, and a longer queue must not start sooner.
	if p.crowds[m.sub].loose && m.isSum(n) {
		n = 1
	}
	rank := m.q.first() - Time(m.exec[n]) + Time(m.debt)

	// If two must start now, the one with the larger slope loses fewer requests by waiting.
	if p.crowds[m.sub].bursty {
		rank += Time(m.exec[n+1]-m.exec[n]) / slopeShare
	}
	return rank / 2
}

// isSum reports whether a batch of n takes about as long as n batches of one.
func (x *execution) isSum(n int) bool {
	return float64(x.exec[n]) > (1-worthMin)*float64(n)*float64(x.exec[1])
}

// slopeShare divides the slope in the rank of a candidate in bursts; decision 0305 compares values.
const slopeShare = 5

// gpusOf returns the number of GPUs in a sub-cluster.
func (p *Partition) gpusOf(sub uint32) int {
	if int(sub) >= len(p.gpus) {
		return 0
	}
	return int(p.gpus[sub])
}
