package plan

import "math"

// answerP is the probability that so few or fewer of the right answers fall on the recent side when right
// and wrong ones are dealt to the two sides at random (Fisher's exact test). It is at most p in a share p
// of the periods without drift; few answers make it smaller than that.
func answerP(old, recent Answers) float64 {
	if old.Labelled == 0 || recent.Labelled == 0 {
		return 1
	}
	all, right := old.Labelled+recent.Labelled, old.Right+recent.Right

	// Upwards from the least possible number; terms by logarithms, since factorials overflow.
	least := max(0, recent.Labelled-(all-right))
	sum := 0.0
	for k := least; k <= recent.Right; k++ {
		sum += math.Exp(logChoose(right, k) + logChoose(all-right, recent.Labelled-k) - logChoose(all, recent.Labelled))
	}
	return min(1, sum)
}

// logChoose is the logarithm of n over k.
func logChoose(n, k int) float64 {
	a, _ := math.Lgamma(float64(n + 1))
	b, _ := math.Lgamma(float64(k + 1))
	c, _ := math.Lgamma(float64(n - k + 1))
	return a - b - c
}

// accuracyLoss is the difference of the accuracies and its interval of 95 %, from Wilson's interval of
// each (Newcombe 1998). Without answers on a side nothing is known.
func accuracyLoss(old, recent Answers) (loss, low, high float64) {
	if old.Labelled == 0 || recent.Labelled == 0 {
		return 0, -1, 1
	}
	before, beforeLow, beforeHigh := wilson(old)
	now, nowLow, nowHigh := wilson(recent)

	// The interval's ends combine the near ends of one side with the far ends of the other.
	loss = before - now
	low = loss - math.Hypot(before-beforeLow, nowHigh-now)
	high = loss + math.Hypot(beforeHigh-before, now-nowLow)
	return loss, low, high
}

// wilson is an accuracy and its interval of 95 %.
func wilson(a Answers) (share, low, high float64) {
	const z = 1.959964
	n := float64(a.Labelled)
	share = float64(a.Right) / n

	middle := (share + z*z/(2*n)) / (1 + z*z/n)
	half := z / (1 + z*z/n) * math.Sqrt(share*(1-share)/n+z*z/(4*n*n))
	return share, max(0, middle-half), min(1, middle+half)
}
