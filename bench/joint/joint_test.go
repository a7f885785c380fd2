package joint

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/solver"
)

// peakOfSeed1 is what FindPeak finds; tests do not search.
const peakOfSeed1 = 1.0625

// peakOfSeed8 is what it finds for the seed of the committed results.
const peakOfSeed8 = 1.21875

func shortOptions(policies string) Options {
	o := DefaultOptions()
	o.Policies, _ = Select(policies)
	o.Peak, o.Span, o.Seed, o.Learn, o.Loads = peakOfSeed1, 2*time.Second, 1, false, []float64{0.5, 1.5}
	return o
}

func runShort(t *testing.T, policies string) []Row {
	t.Helper()
	rows, err := Run(t.Context(), shortOptions(policies), func(string) {})
	if errors.Is(err, solver.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// byPolicy finds the row of a policy at a load.
func byPolicy(t *testing.T, rows []Row, policy string, load float64) Row {
	t.Helper()
	for _, r := range rows {
		if r.Policy == policy && r.Load == load {
			return r
		}
	}
	t.Fatalf("no row of %s at %v", policy, load)
	return Row{}
}

// TestWithoutPrograms: what each method is known for shows on this trace, and the same seed gives the same rows.
func TestWithoutPrograms(t *testing.T) {
	const policies = "downbeat,symphony,symphony-light,rim,adainf"
	rows := runShort(t, policies)

	for _, policy := range []string{"downbeat", "symphony", "adainf"} {
		if r := byPolicy(t, rows, policy, 0.5); r.BadPct > 0.1 || r.EffectiveAccuracy < 0.9999 || r.Sessions != r.Asked {
			t.Errorf("half of the peak, at which the best networks serve everybody: %+v", r)
		}
	}

	// What fits with the lightest networks alone fits where networks are chosen, more accurately.
	ours, light := byPolicy(t, rows, "downbeat", 1.5), byPolicy(t, rows, "symphony-light", 1.5)
	if ours.BadPct > 1 || light.BadPct > 1 || ours.EffectiveAccuracy < light.EffectiveAccuracy+0.02 {
		t.Errorf("chosen networks %+v\nthe lightest ones %+v", ours, light)
	}
	if ours.Sessions < ours.Asked || ours.BadPct > 0.1 {
		t.Errorf("chosen networks lose requests, or sessions: %+v", ours)
	}
	if r := byPolicy(t, rows, "symphony", 1.5); r.BadPct < 5 {
		t.Errorf("the best networks alone serve one and a half times their peak: %+v", r)
	}

	// Rim serves one request at a time: its sessions have their frames, others pay for it.
	if r := byPolicy(t, rows, "rim", 1.5); r.FinishPct < 95 || r.BadPct < 20 {
		t.Errorf("rim: %+v", r)
	}

	for _, r := range rows {
		if asked := r.GoodputRPS / (1 - r.BadPct/100); r.Sessions+r.Refused > r.Asked || asked > 11500*r.Load/1.5 {
			t.Errorf("more came out than went in, %.0f requests/s: %+v", asked, r)
		}
	}

	var first, second bytes.Buffer
	if err := errors.Join(figure.WriteLines(&first, rows...), figure.WriteLines(&second, runShort(t, policies)...)); err != nil {
		t.Fatal(err)
	}
	if first.String() != second.String() {
		t.Errorf("the same seed gave\n%s\nand\n%s", first.String(), second.String())
	}
}

// TestWithPrograms: training in the time that deferral waits for costs the bolted system frames that Proteus alone serves.
func TestWithPrograms(t *testing.T) {
	rows := runShort(t, "proteus,bolted")
	alone, bolted := byPolicy(t, rows, "proteus", 0.5), byPolicy(t, rows, "bolted", 0.5)
	if alone.BadPct > 2 || bolted.FinishPct > alone.FinishPct-2 || bolted.SpareUsed <= 0 {
		t.Errorf("alone %+v\nbolted %+v", alone, bolted)
	}
}

// TestTrialsAreWarm: what a trial's first second asks is served and not counted, since rates are not known yet.
func TestTrialsAreWarm(t *testing.T) {
	cold, err := drawTrace(1, 0.3, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	warm := *cold
	warm.warm = time.Second

	// The same run is counted twice.
	count := func(x *trace) (requests, frames int) {
		o, err := x.serve(x.byDownbeat(x.streams, false))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range o.sessions {
			frames += s.asked
		}
		return o.of[0].asked, frames
	}
	all, allFrames := count(cold)
	half, halfFrames := count(&warm)
	if half < all/3 || half > 2*all/3 || halfFrames < allFrames/3 || halfFrames > 2*allFrames/3 {
		t.Errorf("of %d requests and %d frames in two seconds %d and %d are counted without the first", all, allFrames, half, halfFrames)
	}
}

// TestAdmission: at 1.15 times the peak all sessions fit, which a trial with a choice of networks refuses one of; they are tried at the
// floors, and lose nothing there. Beyond u* of the GPUs the last give way.
func TestAdmission(t *testing.T) {
	draw := func(peaks float64) *trace {
		x, err := drawTrace(8, peaks*peakOfSeed8, 2*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}

	x := draw(1.15)
	if n, err := x.admitByTrial(); err != nil || n != 50 || len(x.streams) != 50 {
		t.Errorf("%d of %d sessions are let in, %v; want 50 of 50", n, len(x.streams), err)
	}
	o, err := x.tryStreams(50)
	if err != nil {
		t.Fatal(err)
	}
	accuracy, _ := o.meanAccuracy()
	if all, _ := o.lostShare(); accuracy > 0.95 || all > 1e-4 {
		t.Errorf("a trial at the floors has accuracy %.4f and loses %.5f of its requests", accuracy, all)
	}

	most := draw(2.75)
	n, err := most.admitByTrial()
	if err != nil || n == 0 || !most.fitsByDemand(n) || most.fitsByDemand(len(most.streams)) {
		t.Errorf("%d of %d sessions are let in, %v; all need more than the GPUs give", n, len(most.streams), err)
	}
}

// TestShareOfATrial: half a frame and more of a session's share is a frame that it may lose.
func TestShareOfATrial(t *testing.T) {
	o := &outcome{sessions: []tally{{asked: 25, good: 25}, {asked: 50, good: 49}, {asked: 49, good: 48}, {asked: 50, good: 48}}}
	if kept := o.keptInTrial(); kept != 2 {
		t.Errorf("%d sessions are kept, want those that lost none and one of 50 frames", kept)
	}
}

// TestKeysAndPicture: rows have the keys that tables of this experiment are made of, and are drawn.
func TestKeysAndPicture(t *testing.T) {
	rows := []Row{{Policy: "downbeat", Load: 0.5, GoodputRPS: 10}, {Policy: "downbeat", Load: 1, GoodputRPS: 20}}
	text, err := json.Marshal(rows[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"policy", "goodput_rps", "bad_pct", "effective_accuracy", "largest_drop", "sessions", "finish_pct", "drift_accuracy", "spare_used"} {
		if !strings.Contains(string(text), `"`+key+`":`) {
			t.Errorf("no %s in %s", key, text)
		}
	}

	var picture, table bytes.Buffer
	if err := errors.Join(Draw(&picture, rows), WriteTable(&table, rows)); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(picture.String(), "<svg") || strings.Count(table.String(), "downbeat") != 2 {
		t.Errorf("%s\n%s", picture.String()[:100], table.String())
	}
}

// TestOptionsThatMakeNoSense are refused by name.
func TestOptionsThatMakeNoSense(t *testing.T) {
	for text, change := range map[string]func(*Options){
		"load 0":     func(o *Options) { o.Loads = []float64{0} },
		"span 1.5s":  func(o *Options) { o.Span = 1500 * time.Millisecond },
		"span 1m15s": func(o *Options) { o.Learn, o.Span = true, 75*time.Second },
		"peak -1":    func(o *Options) { o.Peak = -1 },
	} {
		o := shortOptions("all")
		change(&o)
		if _, err := Run(t.Context(), o, func(string) {}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := Select("ours"); err == nil || !strings.Contains(err.Error(), `policy "ours"`) {
		t.Error(err)
	}
}

// runWithShare returns the one row of a run in which learners want that share of the GPUs' time.
func runWithShare(t *testing.T, o Options, share float64) Row {
	t.Helper()
	o.LearnShare = share
	rows, err := Run(t.Context(), o, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	return rows[0]
}

// TestLearnersBuyTime: where the GPUs are full learners get a GPU of time that they do not find idle, for little accuracy and no
// request. All numbers are means of some seeds, because single ones lose a few requests by chance.
func TestLearnersBuyTime(t *testing.T) {
	o := shortOptions("downbeat")
	o.Peak, o.Loads, o.Span = peakOfSeed8, []float64{1.15}, 10*time.Second

	const seeds = 3
	var idle, bought Row
	for o.Seed = 8; o.Seed < 8+seeds; o.Seed++ {
		for share, sum := range map[float64]*Row{0: &idle, 0.15: &bought} {
			r := runWithShare(t, o, share)
			sum.LearningGPUs += r.LearningGPUs / seeds
			sum.BadPct += r.BadPct / seeds
			sum.EffectiveAccuracy += r.EffectiveAccuracy / seeds
		}
	}
	if bought.LearningGPUs < idle.LearningGPUs+0.5 || bought.BadPct > idle.BadPct || bought.EffectiveAccuracy < idle.EffectiveAccuracy-0.002 {
		t.Errorf("idle time alone %+v\nwith time bought %+v", idle, bought)
	}
	if bought.EffectiveAccuracy >= idle.EffectiveAccuracy {
		t.Errorf("time was bought from nobody: %+v", bought)
	}
	o.LearnShare = 0.6
	if err := o.Check(); err == nil || !strings.Contains(err.Error(), "learn share 0.6: want 0 to 0.5") {
		t.Error(err)
	}
}

// TestLearnersGiveWay: at twice the peak, where the floors take most of the GPUs, a bought fifth of them costs no session and no more requests
// than learners do that take idle time alone.
func TestLearnersGiveWay(t *testing.T) {
	o := shortOptions("downbeat")
	o.Seed, o.Peak, o.Loads, o.Span = 8, peakOfSeed8, []float64{2}, 50*time.Second
	idle, bought := runWithShare(t, o, 0), runWithShare(t, o, 0.2)
	if bought.Sessions < bought.Asked || bought.BadPct > idle.BadPct+0.01 || bought.BadPct > 0.05 {
		t.Errorf("idle time alone %+v\nwith time bought %+v", idle, bought)
	}
	if bought.LearningGPUs < idle.LearningGPUs+0.5 {
		t.Errorf("learners get %.2f GPUs for a fifth, and %.2f for nothing", bought.LearningGPUs, idle.LearningGPUs)
	}
}
