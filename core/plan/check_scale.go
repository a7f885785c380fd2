package plan

import (
	"fmt"
	"math"
	"time"
)

// CheckAdvice reports where a Scaler's last advice does not follow from all that it has observed. It
// goes through the whole history for each rule.
func CheckAdvice(targets Targets, least, most int, at []time.Duration, loads []Load, a Advice) error {
	last := len(loads) - 1
	now, l := at[last], loads[last]

	need := func(i int) int {
		for n := 0; ; n++ {
			if n > 0 && loads[i].Demand <= targets.At(n)*float64(n) || n == 0 && loads[i].Demand <= 0 {
				return n
			}
		}
	}

	// How long demand has been above and well below the target without a break.
	above, below, requests, bad, peak := time.Duration(-1), time.Duration(-1), 0, 0, 0
	for i := last; i >= 0 && loads[i].Demand > targets.At(max(1, loads[i].GPUs))*float64(max(1, loads[i].GPUs)); i-- {
		above = now - at[i]
	}
	for i := last; i >= 0 && loads[i].Demand/float64(max(1, loads[i].GPUs)) < targets.At(max(1, loads[i].GPUs))-0.1; i-- {
		below = now - at[i]
	}
	for i := last; i >= 0; i-- {
		if now-at[i] < 5*time.Second {
			requests, bad = requests+loads[i].Requests, bad+loads[i].Bad
		}
		if now-at[i] <= 10*time.Minute {
			peak = max(peak, need(i))
		}
	}

	// The rules in their order, the loudest first.
	want := l.Ordered
	if share := float64(bad) / math.Max(1, float64(requests)); share > 0.01 {
		share = math.Min(share, 0.5)
		want = max(want, need(last), l.GPUs+int(math.Ceil(float64(l.GPUs)*share/(1-share)-1e-9)))
	} else if above >= 2*time.Second {
		want = max(want, need(last))
	} else if below >= time.Minute {
		want = min(want, max(need(last), int(math.Ceil(0.9*float64(peak)))))
	}
	if want = min(max(want, least), most); a.GPUs != want {
		return fmt.Errorf("%d GPUs advised (%v), the rules lead to %d: above for %v, below for %v, %d of %d bad, peak %d, now %d", a.GPUs, a.Reason, want, above, below, bad, requests, peak, need(last))
	}
	return nil
}
