package measure

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"downbeat.dev/core/profile"
)

// Split is what was measured of a device with so many lanes: ℓ(b) on one of them while all run.
type Split struct {
	Lanes   int
	Profile *profile.Profile
}

// Rate returns how many requests per second the device serves in batches of b on all lanes.
func (s Split) Rate(b int) float64 { return float64(s.Lanes*b) / s.Profile.Exec(b).Seconds() }

// TargetBatch returns the batch within half the SLO that serves most; 0 if there is none. The other half is the time in
// which its requests arrive, and wait for the batch before.
func (s Split) TargetBatch(slo time.Duration) (best int) {
	for b := 1; b <= s.Profile.BatchMax(slo/2); b++ {
		if best == 0 || s.Rate(b) > s.Rate(best) {
			best = b
		}
	}
	return best
}

// laneGain is how many times as much as the whole device a split must serve: less is not worth the memory of further
// copies of the parameters, nor the longer batches.
const laneGain = 1.1

// Gain returns how many times as much s serves at its target batch as whole does, the device with one lane; 0 if s has no
// target batch. If only whole has none, its smallest batch counts.
func (s Split) Gain(whole Split, slo time.Duration) float64 {
	b := s.TargetBatch(slo)
	switch {
	case s.Lanes == whole.Lanes:
		return 1
	case b == 0:
		return 0
	}
	return s.Rate(b) / whole.Rate(max(1, whole.TargetBatch(slo)))
}

// ChooseLanes returns the number of lanes of the split with the largest gain over the first one, which has one lane. It
// is 1 unless the gain is laneGain at least. gains are those of each split.
func ChooseLanes(splits []Split, gains []float64) (lanes int, gain float64) {
	lanes, gain = 1, 1
	for i, s := range splits {
		if gains[i] >= laneGain && gains[i] > gain {
			lanes, gain = s.Lanes, gains[i]
		}
	}
	return lanes, gain
}

// PrintSplits writes ℓ(b) and requests per second by batch size and number of lanes, then each target batch and the
// chosen number. splits begins with one lane.
func PrintSplits(w io.Writer, splits []Split, slo time.Duration) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "batch\t")
	for _, s := range splits {
		fmt.Fprintf(t, "lanes %d: ℓ(b) ms\trequests/s\t", s.Lanes)
	}
	fmt.Fprintln(t)
	for b := 1; b <= splits[0].Profile.Max(); b++ {
		fmt.Fprintf(t, "%d\t", b)
		for _, s := range splits {
			fmt.Fprintf(t, "%s\t%.0f\t", formatMillis(s.Profile.Exec(b)), s.Rate(b))
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}

	var gains []float64
	for _, s := range splits {
		gains = append(gains, s.Gain(splits[0], slo))
		b := s.TargetBatch(slo)
		if b == 0 {
			fmt.Fprintf(w, "lanes %d: no batch ends within half of the SLO of %v\n", s.Lanes, slo)
			continue
		}
		fmt.Fprintf(w, "lanes %d: target batch %d within half of the SLO of %v, %.0f requests/s, %.2f times lanes 1\n",
			s.Lanes, b, slo, s.Rate(b), gains[len(gains)-1])
	}
	return PrintChoice(w, splits, gains, "")
}

// PrintChoice writes the number of lanes that ChooseLanes returns, and of what.
func PrintChoice(w io.Writer, splits []Split, gains []float64, of string) error {
	lanes, gain := ChooseLanes(splits, gains)
	_, err := fmt.Fprintf(w, "choose lanes %d%s: %.2f times lanes 1; a number above 1 needs %.2f\n", lanes, of, gain, laneGain)
	return err
}
