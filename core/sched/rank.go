package sched

import (
	"math"

	"downbeat.dev/core/limits"
)

// rank orders ripe candidates; the lowest is served first.
//
// A batch that waits past its frontrun loses one request per slope, ℓ(n+1) − ℓ(n), so models with a small slope come
// first. The root of the slope counts, or models with a large one would do all the waiting. The debt shares drops out
// evenly, and among equals the model that was served longest ago comes first. This order would be unfair to a burst of
// a model that gains nothing from batching: such models are ordered by their oldest request, and debt hardly counts.
func (p *Partition) rank(m *model, n int) Time {
	if m.crowded && n > 0 {
		return p.crowdRank(m)
	}
	return m.rankIn(&m.execution, n)
}

// rankIn is rank for an execution other than the intended one.
func (m *model) rankIn(x *execution, n int) Time {
	slope := Time(math.Sqrt(slopeUnit * float64(x.exec[n+1]-x.exec[n])))
	if m.single && n > 0 {
		return (m.q.first()-Time(m.slo))/2 + slope + Time(m.debt/16)
	}
	return m.grantAt/2 + slope + Time(m.debt)
}

// slopeUnit turns the root of a slope into a rank in ns.
const slopeUnit = 16 * 15e6

// addDebt raises the model's debt for served requests and lowers it for dropped ones. The two balance when debtShare of
// debtWhole requests are dropped, slightly less than what counts as keeping an SLO. A drop weighs debtStep of the SLO;
// the debt is between −SLO and SLO.
func (m *model) addDebt(served, dropped int) {
	// In units of the SLO, the debts of models with short and long SLOs compare.
	unit := float64(m.slo) * debtStep / debtWhole
	m.debt += Duration(unit * float64(served*debtShare-dropped*(debtWhole-debtShare)))
	m.debt = max(-m.slo, min(m.debt, m.slo))
}

// The constants of addDebt.
const (
	debtShare = 17
	debtWhole = 2000
	debtStep  = 0.007
)

// adjustMargin changes how long before its frontrun the candidate becomes ripe, after requests were served or expired.
//
// From its frontrun on, a batch of n has n slopes of time before its head can no longer be served. Where that is a
// millisecond, a GPU must become free within it, and one such model would limit the load of its sub-cluster. So the
// model asks sooner, until only the share hurryShare of its requests expires. A model whose batches of the target size
// have enough time anyway needs no margin.
func (m *model) adjustMargin(served, expired int) {
	step := float64(m.slo) * hurryStep
	m.margin += Duration(step * (float64(expired) - hurryShare*float64(served)))

	// A batch of the target size already has this much time.
	t := m.target
	slopes := Duration(t) * (m.exec[t+1] - m.exec[t])
	m.margin = max(0, min(m.margin, limits.HasteMost(m.slo)-slopes))
}

// The constants of adjustMargin.
const (
	hurryStep  = 0.01 // of the SLO, per request
	hurryShare = 0.005
)
