package policy

import "math"

// Autoscale is Symphony's own rule of §4.4, as a baseline for plan.Scaler. If the share bad of bad requests exceeds
// threshold, it asks for N·r/(1−r) more GPUs (in the printed N·b/(1−b), b means the bad rate r); else it releases N·f
// GPUs, where f is the idle share of GPU time. The threshold and the period are not published. Autoscale returns the
// wanted number of GPUs, at least 1.
func Autoscale(gpus int, bad, idle, threshold float64) int {
	n := float64(gpus)
	if bad > threshold {
		bad = min(bad, 0.99)
		return gpus + int(math.Ceil(n*bad/(1-bad)-1e-9))
	}
	return max(1, gpus-int(n*idle))
}
