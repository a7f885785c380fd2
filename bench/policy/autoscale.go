package policy

import "math"

// Autoscale is Symphony's own rule of §4.4, as a baseline beside plan.Scaler: with a share bad of bad
// requests above threshold it asks for N·r/(1−r) GPUs more (the printed N·b/(1−b) means the bad rate r),
// else it gives back N·f GPUs, f the idle share of GPU time. Threshold and period are not published.
// It returns the number of GPUs wanted, at least 1.
func Autoscale(gpus int, bad, idle, threshold float64) int {
	n := float64(gpus)
	if bad > threshold {
		bad = min(bad, 0.99)
		return gpus + int(math.Ceil(n*bad/(1-bad)-1e-9))
	}
	return max(1, gpus-int(n*idle))
}
