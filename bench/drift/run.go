package drift

import (
	"context"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"
)

// Row is the result of a policy on a number of GPUs.
type Row struct {
	Policy        string  `json:"policy"`
	GPUs          int     `json:"gpus"`
	Accuracy      float64 `json:"accuracy"`         // of the answers, averaged over time and models
	FinishPct     float64 `json:"finish_pct"`       // of the requests, within the SLO
	SeenNewPct    float64 `json:"seen_new_pct"`     // of the requests of periods that begin with a drift, answered by weights published since
	AsRetrained   float64 `json:"as_retrained_pct"` // of the same requests, answered by weights that are as good as fully retrained ones
	RecoverS      float64 `json:"recover_s"`        // from a drift until half of its loss is recovered; a period if it never is
	FalseAlarmPct float64 `json:"false_alarm_pct"`  // of the periods without a drift, and without one before that has raised no alarm
	DetectedPct   float64 `json:"detected_pct"`     // of the drifts, within their period
}

// PeriodRow is the result of a policy with one model in one period. Its JSON form is one line of the file from which
// the figures of the AdaInf paper are drawn.
type PeriodRow struct {
	Policy      string  `json:"policy"`
	GPUs        int     `json:"gpus"`
	Seed        uint64  `json:"seed"`
	Schedule    string  `json:"schedule,omitempty"`
	Period      int     `json:"period"`
	Model       string  `json:"model"`
	Level       float64 `json:"level"`    // of darkness, 0 to 1
	Drift       bool    `json:"drift"`    // the period begins with a drift
	Alarm       bool    `json:"alarm"`    // the policy detected a drift
	Accuracy    float64 `json:"accuracy"` // of the answers, averaged over the period
	First       float64 `json:"first"`    // in its first second
	Last        float64 `json:"last"`     // in its last second
	Initial     float64 `json:"initial"`  // of the first weights
	SeenNew     float64 `json:"seen_new"` // share of the answers by weights published in the period
	AsRetrained float64 `json:"as_retrained"`
	Finish      float64 `json:"finish"`     // share of the requests in time, of both models
	Divergence  float64 `json:"divergence"` // Jensen-Shannon divergence of the labels from the previous period's, 0 to 1
}

// costly is the smallest loss of accuracy of a drift that counts for Row.RecoverS.
const costly = 0.03

// tally sums the periods for a Row.
type tally struct {
	right, seconds        float64
	finish                float64
	seenNew, driftSeconds float64
	asRetrained           float64
	recover               float64
	costly                int
	drifts, detected      int
	calm, falseAlarms     int
	unnoticed             map[uint64]bool // by the model's number: its latest drift has raised no alarm
}

// Run lets a policy serve a setting's streams. told, unless nil, is called with a line after every period.
func (p Policy) Run(ctx context.Context, s Setting, told func(string)) (Row, error) {
	row, _, err := p.RunPeriods(ctx, s, told)
	return row, err
}

// RunPeriods is Run that also returns the result of each period.
func (p Policy) RunPeriods(ctx context.Context, s Setting, told func(string)) (Row, []PeriodRow, error) {
	if err := s.Validate(); err != nil {
		return Row{}, nil, err
	}

	streams, err := openStreams(s)
	if err != nil {
		return Row{}, nil, err
	}
	l, err := p.open(s, streams)
	if err != nil {
		return Row{}, nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	defer l.close()

	var sum tally
	var periods []PeriodRow
	before := make([]float64, len(streams)) // accuracy at the end of the previous period
	for period := range s.Periods {
		// Stop only between periods: a period is computed completely.
		if err := ctx.Err(); err != nil {
			return Row{}, nil, err
		}
		rows, err := p.runPeriod(s, streams, l, period, before, &sum)
		if err != nil {
			return Row{}, nil, fmt.Errorf("%s, period %d: %w", p.Name, period, err)
		}
		for i := range rows {
			rows[i].Policy = p.Name
		}
		periods = append(periods, rows...)
		if told != nil {
			told(fmt.Sprintf("%s on %d GPUs, period %d: light levels %.2f and %.2f, accuracy at its end %.3f and %.3f",
				p.Name, s.GPUs, period, streams[0].levels[period], streams[1].levels[period], before[0], before[1]))
		}
	}
	if a, ok := l.(accounting); ok && told != nil && !p.untrained {
		told(a.account())
	}
	return sum.row(p.Name, s), periods, nil
}

// runPeriod runs one period, second by second.
func (p Policy) runPeriod(s Setting, streams []*stream, l learning, period int, before []float64, sum *tally) (rows []PeriodRow, err error) {
	views := make([]view, len(streams))
	for m, st := range streams {
		views[m] = view{stream: st, period: period, alarms: l.alarms(m), before: before[m], library: s.Library}
		switch {
		case p.untrained:
			views[m].full = math.Inf(1) // no weights are as good
		case st.drifts(period):
			if views[m].full, err = st.fullyRetrained(period, s); err != nil {
				return nil, err
			}
		}
	}

	if err := l.beginPeriod(period); err != nil {
		return nil, err
	}

	// In each second some weights serve, and the policy gets the labelled samples of the second.
	for second := range int(Period / tick) {
		for m := range streams {
			if err := views[m].second(l.weights(m)); err != nil {
				return nil, err
			}

			for i := range labelled {
				one, err := streams[m].drawOne(period, second*labelled+i)
				if err != nil {
					return nil, err
				}
				streams[m].countLabel(period, one.Class)
				if err := l.offerSample(m, one); err != nil {
					return nil, err
				}
			}
		}

		// What the policy trains in this second serves from the next one on.
		if err := l.endSecond(Period*time.Duration(period) + tick*time.Duration(second+1)); err != nil {
			return nil, err
		}
	}

	sum.finish += l.finishShare()
	for m := range views {
		before[m] = views[m].accuracy
		alarmed := l.alarms(m) > views[m].alarms
		sum.add(&views[m], alarmed)

		row, err := views[m].row(s)
		if err != nil {
			return nil, err
		}
		row.Alarm, row.Finish = alarmed, l.finishShare()
		rows = append(rows, row)
	}
	return rows, nil
}

// row returns the period's result.
func (v *view) row(s Setting) (PeriodRow, error) {
	initial, err := v.stream.accuracy(v.period, v.stream.start, s.Library)
	n := float64(max(1, v.seconds))
	return PeriodRow{GPUs: s.GPUs, Seed: s.Seed, Schedule: s.Schedule, Period: v.period, Model: v.stream.recipe.Family, Level: v.stream.levels[v.period], Drift: v.stream.drifts(v.period),
		Accuracy: v.right / n, First: v.first, Last: v.accuracy, Initial: initial, SeenNew: float64(v.fresh) / n, AsRetrained: float64(v.good) / n,
		Divergence: v.stream.divergence(v.period)}, err
}

// view is one period as seen by one model's clients.
type view struct {
	stream   *stream
	period   int
	library  string
	alarms   int
	before   float64   // accuracy at the end of the previous period
	full     float64   // accuracy of fully retrained weights, if the period begins with a drift
	started  []float32 // weights in the first second
	serving  []float32 // weights in the last second
	accuracy float64   // in the last second
	first    float64   // in the first second
	right    float64   // Σ accuracy over the seconds
	seconds  int
	fresh    int // seconds served by weights published in this period
	good     int // seconds served by weights as good as fully retrained ones
	recover  int // seconds until half of the loss was recovered; -1: not yet
}

// second adds a second in which weights serve.
func (v *view) second(weights []float32) (err error) {
	before := v.serving
	if v.seconds == 0 {
		before = weights
	}

	// Compute each version's accuracy once per period: answering the test set takes longest.
	if v.seconds == 0 || &weights[0] != &before[0] {
		if v.accuracy, err = v.stream.accuracyOf(v.stream.exit, v.period, weights, v.library); err != nil {
			return err
		}
	}
	if v.seconds == 0 {
		v.first, v.recover, v.started = v.accuracy, -1, weights
	}
	v.serving = weights
	v.noteSecond(weights, v.started)
	return nil
}

// noteSecond counts a second of the current accuracy. started are the weights that served at the period's beginning.
func (v *view) noteSecond(weights, started []float32) {
	if &weights[0] != &started[0] {
		v.fresh++
	}
	if v.accuracy >= v.full-asGood {
		v.good++
	}

	// Recovered means half of the way back from the first second's accuracy.
	if v.recover < 0 && v.accuracy >= (v.before+v.first)/2 {
		v.recover = v.seconds
	}
	v.seconds++
	v.right += v.accuracy
}

// add adds a period of one model.
func (t *tally) add(v *view, alarmed bool) {
	t.right += v.right
	t.seconds += float64(v.seconds)

	if !v.stream.drifts(v.period) {
		t.addCalm(v.stream.number, alarmed)
		return
	}

	// Until it raises an alarm, the periods after it are not calm.
	if t.unnoticed == nil {
		t.unnoticed = map[uint64]bool{}
	}
	t.unnoticed[v.stream.number] = !alarmed

	t.drifts++
	if alarmed {
		t.detected++
	}

	// Who answers the requests of such a period is what figure 4b counts.
	t.driftSeconds += float64(v.seconds)
	t.seenNew += float64(v.fresh)
	t.asRetrained += float64(v.good)

	// A drift without a notable loss needs no recovery.
	if v.before-v.first >= costly {
		t.costly++
		if v.recover < 0 {
			v.recover = v.seconds
		}
		t.recover += float64(v.recover)
	}
}

// addCalm adds a period that begins without a drift. After a drift that has raised no alarm, it is no period without drift:
// the data differs from what it is compared with, and an alarm is late, not false.
func (t *tally) addCalm(model uint64, alarmed bool) {
	// A late alarm ends that; the next one is false.
	if t.unnoticed[model] {
		t.unnoticed[model] = !alarmed
		return
	}

	t.calm++
	if alarmed {
		t.falseAlarms++
	}
}

func (t *tally) row(policy string, s Setting) Row {
	percent := func(n, of int) float64 { return 100 * float64(n) / float64(max(1, of)) }
	return Row{Policy: policy, GPUs: s.GPUs, Accuracy: t.right / t.seconds, FinishPct: 100 * t.finish / float64(s.Periods),
		SeenNewPct: 100 * t.seenNew / max(1, t.driftSeconds), AsRetrained: 100 * t.asRetrained / max(1, t.driftSeconds), RecoverS: t.recover / float64(max(1, t.costly)),
		FalseAlarmPct: percent(t.falseAlarms, t.calm), DetectedPct: percent(t.detected, t.drifts)}
}

// WriteTable writes rows for people.
func WriteTable(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "policy\tGPUs\taccuracy\tfinish %\tseen new %\tas retrained %\trecover s\tfalse alarms %\tdetected %\t")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%d\t%.4f\t%.2f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t\n", r.Policy, r.GPUs, r.Accuracy, r.FinishPct, r.SeenNewPct, r.AsRetrained, r.RecoverS, r.FalseAlarmPct, r.DetectedPct)
	}
	return t.Flush()
}
