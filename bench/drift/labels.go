package drift

import "math"

// countLabel counts a class of a period.
func (s *stream) countLabel(period, class int) {
	for period >= len(s.labels) {
		s.labels = append(s.labels, make([]float64, s.net.TargetLen()))
	}

	s.labels[period][class]++
}

// divergence returns the Jensen-Shannon divergence, in bits, between the labels of a period and those of the previous
// period: 0 if they are equal, 1 if they have no class in common.
func (s *stream) divergence(period int) float64 {
	if period == 0 || period >= len(s.labels) {
		return 0
	}
	return divergenceOf(s.labels[period-1], s.labels[period])
}

func divergenceOf(a, b []float64) (bits float64) {
	sumA, sumB := 0.0, 0.0
	for k := range a {
		sumA, sumB = sumA+a[k], sumB+b[k]
	}

	for k := range a {
		p, q := a[k]/max(1, sumA), b[k]/max(1, sumB)
		m := (p + q) / 2

		// A class that never occurs adds nothing: x·log x goes to 0 with x.
		for _, x := range [2]float64{p, q} {
			if x > 0 {
				bits += x / 2 * math.Log2(x/m)
			}
		}
	}
	return bits
}
