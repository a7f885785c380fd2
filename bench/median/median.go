// Package median computes the median, and other percentiles, by one definition for all benchmarks.
package median

import (
	"math"
	"slices"
)

// Of returns the middle value, or the mean of the two middle ones if their number is even; 0 for no values. The order
// of values stays as it is.
func Of[T ~int64 | ~float64](values []T) T {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	low, high := sorted[(len(sorted)-1)/2], sorted[len(sorted)/2]

	// For integers, low + high may overflow.
	return low + (high-low)/2
}

// Percentile returns the smallest of the values that at least p percent of them do not exceed, the nearest rank: always one
// of the values. 0 for no values. The order of values stays as it is.
func Percentile[T ~int64 | ~float64](values []T, p float64) T { return Percentiles(values, p)[0] }

// Percentiles returns several percentiles. It sorts once.
func Percentiles[T ~int64 | ~float64](values []T, percents ...float64) []T {
	found := make([]T, len(percents))
	if len(values) == 0 {
		return found
	}

	sorted := slices.Sorted(slices.Values(values))
	for i, p := range percents {
		// A product that is whole but for floating point, such as 0.07·100, must not take the next rank.
		rank := int(math.Ceil(float64(len(values))*p/100 - 1e-6))
		found[i] = sorted[max(0, min(len(values), rank)-1)]
	}
	return found
}
