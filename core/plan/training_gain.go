package plan

const (
	// gainSteps is the number of steps that win back most of what a drift has cost: 63 %.
	gainSteps = 200
	// leastGain is the gain of a step that is always expected: a point of accuracy in gainSteps steps. A learner that
	// has long trained still gains (docs/decisions/0385), and noise around nothing must not decide who trains.
	leastGain = 0.01 / gainSteps
	// remainingMost bounds what a drift is said to have cost: a few labels can say anything.
	remainingMost = 0.5
)

// TrainingGain estimates the gain of a learner's next step. A drift has cost accuracy, of which each step is expected
// to win back the same share of what remains. What a published version has gained more than expected, or less, moves
// what remains by half of the difference. So the estimate is large after a drift, falls smoothly, and does not follow
// the noise of single judgements. The zero value has seen no drift.
type TrainingGain struct {
	remaining float64 // accuracy that is not won back yet
	expected  float64 // gain since the drift or the latest published version
}

// NoteDrift begins anew with the accuracy that a drift has cost.
func (g *TrainingGain) NoteDrift(impact float64) {
	*g = TrainingGain{}
	if impact > 0 { // false for NaN
		g.remaining = min(impact, remainingMost)
	}
}

// NoteStep counts a training step.
func (g *TrainingGain) NoteStep() {
	won := g.remaining / gainSteps
	g.remaining -= won
	g.expected += won
}

// NotePublished corrects the estimate by the validated gain of a version that serves from now on.
func (g *TrainingGain) NotePublished(gain float64) {
	if !finite(gain) {
		return
	}
	g.remaining = min(max(0, g.remaining+(gain-g.expected)/2), remainingMost)
	g.expected = 0
}

// OfStep returns the expected gain of the next step, in accuracy. It is never 0.
func (g *TrainingGain) OfStep() float64 { return leastGain + g.remaining/gainSteps }
