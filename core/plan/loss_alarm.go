package plan

import "math"

// LossAlarm watches a model's answers one by one and tells when it suddenly answers fewer rightly. A comparison of a
// whole period (Drift) finds smaller losses, but a loss in the middle of the period is diluted there by the answers
// before it, and waits for the comparison.
//
// It bets on losses of several sizes that may begin at any answer. While the model answers as rightly as the reference,
// the wealth of all bets is a supermartingale, so that it exceeds 1/level in a share level of the periods at most
// (Ville 1939; Shiryaev 1963). It belongs to one goroutine.
type LossAlarm struct {
	most      float64 // wealth that raises the alarm
	wealth    float64
	noted     int
	reference Answers
	bets      [len(alarmLosses)]bet
	likely    int // the bet whose likeliest beginning has the most wealth
}

// bet is the bet on one size of loss.
type bet struct {
	right, wrong float64 // by which an answer multiplies the wealth
	wealth       float64 // of the beginnings so far
	run          float64 // logarithm of the wealth of the likeliest beginning
	since        Answers // since then
}

// alarmLosses are the sizes, in shares of all answers.
var alarmLosses = [...]float64{0.1, 0.2, 0.4}

// NewLossAlarm watches from the next answer on, for a loss against the reference. level is the share of periods without
// a loss that may raise the alarm. It returns nil without a reference.
func NewLossAlarm(reference Answers, level float64) *LossAlarm {
	if reference.Labelled == 0 || !(level > 0 && level < 1) {
		return nil
	}

	a := &LossAlarm{most: 1 / level}
	a.Follow(reference)
	return a
}

// Follow watches the answers of another version of the model from the next answer on, against that version's answers to
// the reference. What the bets have won or lost stays: an alarm that began anew with every version would have its level
// each time, not once in a period.
func (a *LossAlarm) Follow(reference Answers) {
	// Few answers tell the reference's share only roughly; assume one and a half standard errors more wrong ones.
	n := float64(reference.Labelled)
	wrong := (n - float64(reference.Right) + 1) / (n + 2)
	wrong = min(0.5, wrong+1.5*math.Sqrt(wrong*(1-wrong)/n))

	a.reference = reference
	for i, loss := range alarmLosses {
		more := wrong + loss*(1-wrong)
		a.bets[i].right, a.bets[i].wrong = (1-more)/(1-wrong), more/wrong
	}
}

// Note adds an answer, and reports whether the alarm is raised.
func (a *LossAlarm) Note(right bool) (raised bool) {
	a.noted++
	n := float64(a.noted)
	a.wealth = 1 / (n + 1) // of the beginnings still to come
	for i := range a.bets {
		// The share 1/(n·(n+1)) is for a loss that begins with this answer; all shares sum to 1.
		b := &a.bets[i]
		b.noteAnswer(right, 1/(n*(n+1)))
		a.wealth += b.wealth / float64(len(a.bets))

		if b.run > a.bets[a.likely].run {
			a.likely = i
		}
	}
	return a.wealth >= a.most
}

func (b *bet) noteAnswer(right bool, share float64) {
	// A beginning that has lost wealth is less likely than one with this answer.
	if b.run <= 0 {
		b.run, b.since = 0, Answers{}
	}

	b.since.Labelled++
	factor := b.wrong
	if right {
		b.since.Right++
		factor = b.right
	}

	b.wealth = (b.wealth + share) * factor
	b.run += math.Log(factor)
}

// Since returns the number of answers since the loss most likely began.
func (a *LossAlarm) Since() int { return a.bets[a.likely].since.Labelled }

// Report returns the result of an alarm that was raised.
func (a *LossAlarm) Report() DriftReport {
	r := DriftReport{Drifted: true, FeatureP: 1, AnswerP: 1 / a.wealth}
	r.Impact, r.ImpactLow, r.ImpactHigh = accuracyLoss(a.reference, a.bets[a.likely].since)
	return r
}
