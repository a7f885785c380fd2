package plan

const (
	// targetStep is how much one observation moves u*: slowly up, faster down.
	targetStep = 0.002
	// targetNear is how near to u* the use must be for a good second to prove anything.
	targetNear = 0.03
)

// Correct moves u* by what a cluster of gpus showed over some seconds at use u (demand per GPU): down
// where more than 1 % went bad although u was at or below u*, up by a fifth of that where fewer than half
// a per cent did with u near u*. Points keep their GPUs; between two points the nearer one moves. It
// writes to t.
func (t Targets) Correct(gpus int, u, bad float64) {
	if len(t) == 0 || !(u > 0) || !(bad >= 0) {
		return
	}
	nearest := 0
	for i := range t {
		if abs(float64(t[i].GPUs-gpus)) < abs(float64(t[nearest].GPUs-gpus)) {
			nearest = i
		}
	}

	// Down five times as fast as up: a share that is too high costs answers, one that is too low GPUs.
	p := &t[nearest]
	switch at := t.At(gpus); {
	case bad > scaleBadMost && u <= at:
		p.Share = max(0.3, p.Share-targetStep*5)
	case bad < scaleBadMost/2 && u > at-targetNear:
		p.Share = min(1, p.Share+targetStep)
	}
}

// FindTarget returns the largest use at which a trial, a run of the scheduler in virtual time at that
// use, has at most 1 % of its requests bad: u* to within 0.005. A trial that fails at 0.3 returns 0.3.
func FindTarget(trial func(use float64) (bad float64)) float64 {
	low, high := 0.3, 1.0
	if trial(high) <= scaleBadMost {
		return high
	}

	for high-low > 0.005 {
		if middle := (low + high) / 2; trial(middle) <= scaleBadMost {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}
