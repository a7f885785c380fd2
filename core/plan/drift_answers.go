package plan

import "math"

// answerP returns the probability that the recent side gets this few right answers, or fewer, when right and wrong
// answers are dealt to the two sides at random (Fisher's exact test). It is at most p in a share p of the periods
// without drift; with few answers the share is smaller.
func answerP(old, recent Answers) float64 {
	if old.Labelled == 0 || recent.Labelled == 0 {
		return 1
	}
	all, right := old.Labelled+recent.Labelled, old.Right+recent.Right

	// Count upwards from the least possible number, with logarithms, because factorials overflow.
	least := max(0, recent.Labelled-(all-right))
	sum := 0.0
	for k := least; k <= recent.Right; k++ {
		sum += math.Exp(logChoose(right, k) + logChoose(all-right, recent.Labelled-k) - logChoose(all, recent.Labelled))
	}
	return min(1, sum)
}

// logChoose returns the logarithm of n over k.
func logChoose(n, k int) float64 {
	a, _ := math.Lgamma(float64(n + 1))
	b, _ := math.Lgamma(float64(k + 1))
	c, _ := math.Lgamma(float64(n - k + 1))
	return a - b - c
}

// accuracyLoss returns the difference of the accuracies and its 95 % interval, from Wilson's interval of each
// (Newcombe 1998). If a side has no answers, the loss is 0 and the interval is −1 to 1.
func accuracyLoss(old, recent Answers) (loss, low, high float64) {
	if old.Labelled == 0 || recent.Labelled == 0 {
		return 0, -1, 1
	}
	before, beforeLow, beforeHigh := wilson(old)
	now, nowLow, nowHigh := wilson(recent)

	// The ends of the interval combine the near ends of one side with the far ends of the other.
	loss = before - now
	low = loss - math.Hypot(before-beforeLow, nowHigh-now)
	high = loss + math.Hypot(beforeHigh-before, now-nowLow)
	return loss, low, high
}

// wilson returns an accuracy and its 95 % interval.
func wilson(a Answers) (share, low, high float64) {
	const z = 1.959964
	n := float64(a.Labelled)
	share = float64(a.Right) / n

	middle := (share + z*z/(2*n)) / (1 + z*z/n)
	half := z / (1 + z*z/n) * math.Sqrt(share*(1-share)/n+z*z/(4*n*n))
	return share, max(0, middle-half), min(1, middle+half)
}
