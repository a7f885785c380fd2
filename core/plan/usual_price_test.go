package plan

import (
	"math"
	"testing"
)

// TestUsualPrice shows the usual price at the start, in a burst, after it, and while requests go bad.
func TestUsualPrice(t *testing.T) {
	const every = 0.02
	var u usualPrice
	usual := func(price, bad, seconds float64) (last float64) {
		for range int(math.Round(seconds / every)) {
			last = u.update(&PricedHome{Price: price, BadShare: bad}, false, every)
		}
		return last
	}

	// At the start nothing is usual: the present price counts.
	if usual(1, 0, 1); usual(5, 0, every) != 5 {
		t.Error("in the first seconds the usual price is not the present one")
	}

	if got := usual(1, 0, 20); math.Abs(got-1) > 1e-3 {
		t.Errorf("after 20 s at a price of 1 it is %v", got)
	}
	if got, want := usual(11, 0, 0.2), 1+10*(1-math.Exp(-0.2/usualSpan)); math.Abs(got-want) > 0.01 {
		t.Errorf("0.2 s into a burst of 11 it is %v, want %v", got, want)
	}

	// Requests that go bad end the burst; fewer do not, nor do they when the price is low.
	if got := usual(11, badLeast, every); got > 5 {
		t.Errorf("at a bad share of %v it is %v, want as before", badLeast, got)
	}
	if got := usual(11, 2*badLeast, every); got != 11 {
		t.Errorf("while requests go bad it is %v, want the present price, 11", got)
	}
	if got := usual(1, 2*badLeast, every); got < 10 {
		t.Errorf("at a low price it is %v, want a little less than 11", got)
	}
}
