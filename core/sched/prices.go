package sched

import "math"

// price is the price of a second of a sub-cluster's GPUs, in units of accuracy per request (UNIFIED U3).
type price struct {
	now   float64
	usual float64 // the mean of the last seconds
}

const (
	// leastPrice is the price of a GPU second that nothing else wants: among equal answers the one with less GPU time
	// wins, and among idle GPUs the faster one.
	leastPrice = 0.01
	// burstSpan is the time, in seconds, in which the part of a price above the usual one falls to 1/e.
	burstSpan = 0.2
)

// SetPrice sets the price of a GPU second in a sub-cluster: GPU time that is not used for a more accurate answer here could be
// used elsewhere. usual is its mean over the last seconds. It applies to all later decisions; waiting requests are checked when
// they would have been anyway.
func (p *Partition) SetPrice(subCluster uint32, now, usual float64) {
	if subCluster >= SubClusterLimit || !(now >= 0) || !(usual >= 0) {
		return
	}

	for int(subCluster) >= len(p.prices) {
		p.prices = append(p.prices, price{})
	}
	p.prices[subCluster] = price{now, usual}
}

// priceOf returns the present price of a GPU second in a sub-cluster.
func (p *Partition) priceOf(sub uint32) float64 { return p.priceIn(sub).now }

// priceIn returns the price in a sub-cluster.
func (p *Partition) priceIn(sub uint32) price {
	if int(sub) >= len(p.prices) {
		return price{leastPrice, leastPrice}
	}

	x := p.prices[sub]
	return price{max(leastPrice, x.now), max(leastPrice, x.usual)}
}

// over returns the mean price of the seconds of a batch that takes exec. A burst is over before a long batch is, so a price
// above the usual one falls back to it within the batch. A price below it stays: nothing says that demand comes back.
func (x price) over(exec Duration) float64 {
	if x.now <= x.usual {
		return x.now
	}

	// The mean of e^(−t/burstSpan) over the batch.
	spans := float64(exec) / (1e9 * burstSpan)
	raised := (1 - math.Exp(-spans)) / spans
	return x.usual + float64((x.now-x.usual)*raised)
}
