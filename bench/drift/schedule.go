package drift

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"downbeat.dev/models/scene"
)

// schedule says how much the drifts of a setting change. Both schedules drift in the same periods.
type schedule struct {
	// darkest is the darkness of each model's darkest period: 0 is a clear day, 1 a night darker than any in the models'
	// training data.
	darkest map[string]float64
	// bend makes losses about proportional to levels: most of the accuracy is lost in the last steps towards the dark.
	bend float64
	// divergence is the largest Jensen-Shannon divergence, in bits, of a model's labels at a drift; none: all classes
	// stay equally frequent.
	divergence map[string]float64
}

// The schedules. AdaInf's figures 5 and 6 give ranges of what a drift changes: weights that are not retrained lose up to
// 15 % of the vehicle model's answers and up to 9 % of those of the activity model, which stands for AdaInf's person
// model, against retrained ones; and the labels of the vehicle model diverge by up to 0.26.
//
// Night bounds what the first weights lose, to about those ranges, and leaves the labels alone. Less than half of its
// loss can be won back by any weights: it is dark. Paper has the whole ranges, of what retraining wins back and of the
// labels (docs/decisions/0381).
var schedules = map[string]schedule{
	"night": {darkest: map[string]float64{"vehicle-s": 0.8, "activity-s": 0.65}, bend: 0.4},
	"paper": {darkest: map[string]float64{"vehicle-s": 0.87, "activity-s": 0.65}, bend: 0.4,
		divergence: map[string]float64{"vehicle-s": 0.26, "activity-s": 0.26 * 9 / 15}},
}

func findSchedule(name string) (schedule, error) {
	if s, ok := schedules[name]; ok {
		return s, nil
	}
	return schedule{}, fmt.Errorf("schedule: %q: want one of %v", name, slices.Sorted(maps.Keys(schedules)))
}

const (
	driftShare = 0.5 // share of the periods that begin with a drift
	driftLeast = 0.4 // smallest change of level that counts as a drift
)

// drawLevels draws a schedule. The first period is a day; every other period equals the previous one or differs much
// from it.
func drawLevels(rng *rand.Rand, periods int) []float64 {
	levels := make([]float64, periods)
	for k := 1; k < periods; k++ {
		levels[k] = levels[k-1]
		if rng.Float64() >= driftShare {
			continue
		}
		for levels[k] == levels[k-1] {
			if next := rng.Float64(); max(next-levels[k-1], levels[k-1]-next) >= driftLeast {
				levels[k] = next
			}
		}
	}
	return levels
}

// divergenceLeast is the smallest divergence of labels at a drift in figure 6.
const divergenceLeast = 0.001

// drawMixes draws the frequencies of the classes, by period. They are even at first, and change with the level. How
// much they diverge is uniform between the least and most; in which direction is random.
func drawMixes(rng *rand.Rand, levels []float64, classes int, most float64) [][]float64 {
	mixes := [][]float64{slices.Repeat([]float64{1 / float64(classes)}, classes)}
	for k := 1; k < len(levels); k++ {
		last := mixes[k-1]
		if levels[k] == levels[k-1] {
			mixes = append(mixes, last)
			continue
		}

		bits := divergenceLeast + (most-divergenceLeast)*rng.Float64()

		// A direction in which nothing is that far away does not serve.
		towards := drawMix(rng, classes)
		for divergenceOf(last, towards) < bits {
			towards = drawMix(rng, classes)
		}
		mixes = append(mixes, mixAway(last, towards, bits))
	}
	return mixes
}

// drawMix draws frequencies that sum to 1, all such with the same probability.
func drawMix(rng *rand.Rand, classes int) []float64 {
	mix, sum := make([]float64, classes), 0.0
	for i := range mix {
		mix[i] = rng.ExpFloat64()
		sum += mix[i]
	}

	for i := range mix {
		mix[i] /= sum
	}
	return mix
}

// mixAway returns the mix on the way from one to another that diverges from the first by some bits.
func mixAway(from, towards []float64, bits float64) []float64 {
	between := func(share float64) []float64 {
		mix := slices.Clone(from)
		for i := range mix {
			mix[i] += share * (towards[i] - from[i])
		}
		return mix
	}

	// The divergence grows with the share of the way.
	least, most := 0.0, 1.0
	for range 40 {
		if half := (least + most) / 2; divergenceOf(from, between(half)) < bits {
			least = half
		} else {
			most = half
		}
	}
	return between(most)
}

// phaseOf returns how much of a learner's period has passed whenever a drift of a model comes.
func (s Setting) phaseOf(model uint64) time.Duration {
	if !s.Phases {
		return 0
	}
	return tick * time.Duration(rand.New(rand.NewPCG(s.Seed, 700+model)).IntN(int(Period/tick)))
}

// drifts reports whether a period begins with a drift.
func (s *stream) drifts(period int) bool { return period > 0 && s.levels[period] != s.levels[period-1] }

// conditions returns the conditions of a period.
func (s *stream) conditions(period int) *scene.Conditions {
	x := s.darkest * math.Pow(s.levels[period], s.bend)
	mix := func(day, dark float64) float64 { return day + x*(dark-day) }
	c := scene.Day()
	c.Light, c.Rain, c.Noise, c.Occlusion = mix(0.95, 0.15), mix(0, 0.5), mix(0.01, 0.05), mix(0.2, 0.35)

	if s.mixes != nil {
		weights := c.Activities[:]
		if s.recipe.Family == "vehicle" {
			weights = c.Kinds[scene.Vehicle(0):]
		}
		for i, share := range s.mixes[period] {
			weights[i] = share * float64(len(weights))
		}
	}
	return &c
}
