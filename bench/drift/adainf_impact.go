package drift

import (
	"cmp"
	"math"
	"slices"

	"downbeat.dev/core/plan"
)

// findImpact returns the loss of accuracy on the farthest samples, relative to the first weights on the farthest
// initial samples, or 0. It takes more and more samples until several consecutive answers agree.
func (m *adainfModel) findImpact(right []bool, order []int) (impact float64) {
	agree, last := 0, false
	for k := 1; k <= divergentMost; k++ {
		n := divergentCount(len(order), k)
		impact = m.initial - rightAmong(right, order[:n])

		// A loss within the 95 % range of such a count is no loss.
		lost := impact > chanceLoss(m.initial, n)
		if lost == last {
			agree++
		} else {
			agree, last = 1, lost
		}
		if agree == divergentAgree {
			break
		}
	}
	if !last {
		return 0
	}
	return impact
}

// chanceLoss returns the accuracy that n samples may seem to lose by chance, at 95 %.
func chanceLoss(accuracy float64, n int) float64 {
	return 1.96 * math.Sqrt(accuracy*(1-accuracy)/float64(n))
}

// divergentCount returns how many of n samples count as the farthest at the k-th attempt.
func divergentCount(n, k int) int { return max(1, int(divergentStep*float64(k)*float64(n))) }

// meanFeature returns the mean of the inputs' features.
func meanFeature(f plan.Features) []float32 {
	mean := make([]float32, f.Dim)
	n := float32(len(f.Values) / f.Dim)
	for i, v := range f.Values {
		mean[i%f.Dim] += v / n
	}
	return mean
}

// byDistance orders inputs by the cosine distance of their features from a mean, the farthest first. The paper's
// uncentred principal components are a rotation, which changes no cosine as long as all of them are kept.
func byDistance(f plan.Features, mean []float32) []int {
	n := len(f.Values) / f.Dim
	order, distance := make([]int, n), make([]float64, n)
	for i := range n {
		order[i], distance[i] = i, 1-cosine(f.Values[i*f.Dim:(i+1)*f.Dim], mean)
	}
	slices.SortStableFunc(order, func(x, y int) int { return -cmp.Compare(distance[x], distance[y]) })
	return order
}

func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		ab += float64(a[i]) * float64(b[i])
		aa += float64(a[i]) * float64(a[i])
		bb += float64(b[i]) * float64(b[i])
	}
	return ab / math.Max(1e-12, math.Sqrt(aa*bb))
}

// rightAmong returns the share of right answers among some samples.
func rightAmong(right []bool, some []int) float64 {
	n := 0
	for _, i := range some {
		if right[i] {
			n++
		}
	}
	return float64(n) / float64(max(1, len(some)))
}
