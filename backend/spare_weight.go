package backend

import "slices"

// weightStep is the relative change from which other work's weight is told: values change with every step.
const weightStep = 0.25

// WeighSpareWork sets how values of spare work become weights, one for each value and all above 0. Until then all work has
// the weight 1.
func (b *Backend) WeighSpareWork(weigh func(values []float64) []float64) {
	b.spareWeights.Lock()
	defer b.spareWeights.Unlock()
	b.weigh = weigh
}

// weighSpareWork gives all offered work a weight by its value. changed is offered by the caller; other work is offered
// again if its weight has changed much. The caller holds spareWeights.
func (b *Backend) weighSpareWork(changed *SpareWork) {
	b.mu.Lock()
	all := slices.Clone(b.spares)
	b.mu.Unlock()

	// Work that is not offered takes no time from the others.
	var offered []*SpareWork
	var values []float64
	for _, w := range all {
		if value, ok := w.offeredValue(); ok {
			offered, values = append(offered, w), append(values, value)
		}
	}

	weights := slices.Repeat([]float64{1}, len(values))
	if b.weigh != nil {
		weights = b.weigh(values)
	}
	for i, w := range offered {
		if w.setWeight(weights[i], w == changed) {
			w.tellOffer()
		}
	}
}

// offeredValue returns the work's value if it is offered.
func (w *SpareWork) offeredValue() (value float64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.value, w.offer.Step != 0
}

// setWeight sets the work's weight, if it has changed much or always, and reports whether the caller must tell it now. A
// step that runs may be late, and an offer would resume work that the scheduler has suspended for it: then the offer
// follows the step's end.
func (w *SpareWork) setWeight(weight float64, always bool) (tell bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.offer.Weight
	if !always && max(weight, before) < (1+weightStep)*min(weight, before) {
		return false
	}

	w.offer.Weight = weight
	w.renewed = !always && w.busy
	return !always && !w.renewed
}

// takeRenewed reports whether the weight has changed during the step that has ended.
func (w *SpareWork) takeRenewed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	renewed := w.renewed
	w.renewed = false
	return renewed
}
