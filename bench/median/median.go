// Package median computes the median by one definition for all benchmarks.
package median

import "slices"

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
