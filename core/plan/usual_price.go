package plan

import "math"

// usualPrice is the mean price of a sub-cluster over the last seconds, older prices with less weight. A batch that outlasts
// a burst of demand pays it for the time after the burst (decision 0409).
type usualPrice struct {
	mean    float64
	seconds float64 // since the first price
}

// usualSpan is the time over which it is averaged, in seconds.
const usualSpan = 2

// update adds the home's newest price, and returns the usual one. Nothing is usual yet in the first seconds. risen tells that
// demand has risen for longer than a burst.
func (u *usualPrice) update(h *PricedHome, risen bool, seconds float64) float64 {
	u.seconds += seconds
	u.mean += (h.Price - u.mean) * (1 - math.Exp(-seconds/usualSpan))

	// A mean of less would be that of a start, at which nobody wants GPU time.
	if u.seconds < usualSpan {
		u.mean = h.Price
	}

	// While requests go bad, or after a lasting step, the demand is no burst that may be waited out.
	if risen || h.BadShare > badLeast {
		u.mean = max(u.mean, h.Price)
	}
	return u.mean
}
