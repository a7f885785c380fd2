package sim

import "math/rand/v2"

// Options are one run of a Cluster. Durations are ns, probabilities are per message.
type Options struct {
	Seed uint64

	Backends, GPUs     int // GPUs of each backend
	Clusters           int // sub-clusters that backends and models are spread over
	Named              bool
	Models, Frontends  int
	Schedulers         int // 0 and 1: it is alone, and there is no election
	Cores, Partitions  int
	QueueMax, LiveMax  int    // engine.Options QueueMax, RequestsMax
	Window             uint32 // that a frontend's ids lie in; 0: larger than any of them
	Requests           int
	Span               Duration // of arrivals; 0: for as long as Requests take, between 20 ms and 2 s
	Load               float64  // offered, as a share of what the GPUs can do at good batches
	Burst              int      // requests at a time, at most
	Tight              bool     // SLOs near ℓ(1)
	Ctrl, Data         Duration
	Prompt             float64
	Delay, Vary        Duration // a message takes Delay to Delay+Vary
	Eager              bool     // backends begin as soon as the inputs are there, as the real one does
	PollLate           Duration // wake-ups come late by up to this
	ShufflePolls       bool     // loops are polled in any order
	ExecLess, ExecMore float64  // a batch takes ℓ(b)·(1−ExecLess … 1+ExecMore)
	Unlike             float64  // backends' profiles differ by up to this share
	OneKind            bool     // their GPUs name one kind all the same
	Beyond             float64  // a backend's batches take up to this share longer than its profile says
	Ahead              float64  // share of batches reported before they end
	Drift              float64  // clocks run faster or slower by up to this share
	Cancels, Junk      float64  // share of requests given up early; of submissions that make no sense
	ShortBudgets       float64  // share of requests with a budget of their own
	Priorities         bool
	Learners           int      // of each backend: spare work
	SpareStep          Duration // that their steps take at most

	LoseSubmit, LoseCancel, LoseExecute, LoseDone, LoseOutcome, LoseOutput float64
	Duplicate, Late                                                        float64
	LateBy                                                                 Duration
	FailItem, GiveBack                                                     float64 // of a batch's requests
	Untold                                                                 float64 // of failures: the scheduler answers
	Skew                                                                   float64 // share of peers of the version before
	Hangs, Deaths, Breaks, Vanishes, Slowdowns, BrokenGPUs                 int
	Darks, SlowLinks, DarkFronts                                           int
	LeaderDeaths, LeaderPauses, StoreCuts, Isolations                      int // of several schedulers
	StepOverruns, StepsUntold, LoseSteps                                   float64

	// Models that move to another sub-cluster, by one plan; or how often one model moves, by a plan each. All backends
	// then know all models, and sub-clusters have models alike.
	Moved, Again int
	MoveAt       Duration // when the first plan is applied; 0: after a tenth of the span
	Epoch        Duration // schedulers plan anew so often by themselves; 0: they do not. Backends and models are as if some moved
	LoadTime     Duration // of a model, without its warm-up
	KillAt       int      // the leader dies when backends have been asked for so many placements; 0: it does not
	Undo         bool     // its successor puts back what was there
	AwayAt       int      // a backend leaves for longer than a plan waits for its GPUs, when so many were asked for; 0: none does

	// Families of so many models each, where that is 2 or more, and kinds of GPUs: one for each sub-cluster, of which the
	// slowest takes up to Kinds longer, as a share. Floors is the share of requests for a family that name a floor.
	Variants      int
	Kinds, Floors float64
}

// faulty says whether anything in the run may keep an output from coming in time.
func (o *Options) faulty() bool {
	lossy := o.LoseSubmit + o.LoseCancel + o.LoseExecute + o.LoseDone + o.LoseOutcome + o.LoseOutput + o.Duplicate + o.Late + o.FailItem + o.GiveBack
	events := o.Hangs + o.Deaths + o.Breaks + o.Vanishes + o.Slowdowns + o.BrokenGPUs + o.Darks + o.SlowLinks + o.DarkFronts +
		o.LeaderDeaths + o.LeaderPauses + o.StoreCuts + o.Isolations + o.KillAt + o.AwayAt + o.Moved + o.Again + min(1, int(o.Epoch))
	return lossy > 0 || events > 0 || o.StepOverruns+o.StepsUntold+o.LoseSteps > 0 || !o.Eager || o.Ctrl < o.Delay+o.Vary || o.ExecMore > 0 || o.Ahead > 0 || o.Drift > 0
}

// spareStepLeast is the shortest step of spare work.
const spareStepLeast Duration = 1e5

// filled returns the options with the least that a run needs where they say nothing.
func (o Options) filled() Options {
	for _, n := range []*int{&o.Clusters, &o.GPUs, &o.Frontends, &o.Cores, &o.Partitions, &o.Requests, &o.Burst, &o.Schedulers} {
		*n = max(1, *n)
	}

	// Each sub-cluster needs a backend and a model, and families are whole.
	o.Models, o.Backends = max(o.Models, o.Clusters), max(o.Backends, o.Clusters)

	// A step that takes no time would be followed by the next at the same moment, for ever.
	if o.Learners > 0 {
		o.SpareStep = max(o.SpareStep, spareStepLeast)
	}
	if v := o.Variants; v > 1 {
		o.Models = (o.Models + v - 1) / v * v
	}
	if o.Load <= 0 {
		o.Load = 0.5
	}
	if o.LiveMax <= 0 {
		o.LiveMax = 1 << 14
	}
	return o
}

// Calm returns the options without faults, bad input, and what makes a run hard to compare: exact
// GPUs of one kind, wake-ups on time, budgets that are the models' SLOs.
func (o Options) Calm() Options {
	return Options{Seed: o.Seed, Backends: o.Backends, GPUs: o.GPUs, Clusters: o.Clusters, Named: o.Named, Models: o.Models,
		Frontends: o.Frontends, Cores: o.Cores, Partitions: o.Partitions, LiveMax: 1 << 15, Requests: o.Requests, Span: o.Span,
		Load: o.Load, Burst: o.Burst, Ctrl: o.Ctrl, Data: o.Data, Prompt: o.Prompt, Delay: o.Delay, Vary: o.Vary, Eager: true,
		Learners: o.Learners, SpareStep: o.SpareStep}
}

// Draw returns the options of a seed.
func Draw(seed uint64) Options {
	o := drawAlike(seed)
	o.drawKind()
	return o
}

// drawAlike draws GPUs of one kind that are alike, or of no known kind.
func drawAlike(seed uint64) Options {
	// Options have a random stream of their own: a run that draws more does not change them.
	r := rand.New(rand.NewPCG(seed, 1))
	pick := func(n ...int) int { return n[r.IntN(len(n))] }
	upTo := func(most float64) float64 { return most * r.Float64() * r.Float64() }
	span := func(most Duration) Duration { return Duration(upTo(float64(most))) }
	coin := func(in int) bool { return r.IntN(in) == 0 }

	o := Options{Seed: seed, Eager: !coin(4), Named: coin(2), Cores: pick(1, 1, 2, 4), Tight: coin(4), Priorities: coin(3)}
	o.Clusters = pick(1, 1, 1, 2, 4)
	o.Backends = max(o.Clusters, pick(1, 2, 4, 8))
	o.GPUs = pick(1, 1, 2, 8)
	o.Models = pick(1, 2, 5, 20, 1+r.IntN(200))
	o.Frontends = pick(1, 2, 5)
	o.Partitions = o.Cores * pick(1, 1, 2, 4)
	o.QueueMax, o.LiveMax = pick(0, 0, 0, 8, 200), pick(1<<14, 1<<14, 1<<12, 16)

	o.Requests = pick(20, 300, 1000, 3000, 6000)
	o.Window = uint32(pick(0, 0, 0, 0, 1, 16, 256, 1024))
	o.Load = []float64{0.1, 0.5, 0.8, 1, 2, 5}[r.IntN(6)]
	o.Burst = pick(1, 1, 4, 64)

	o.Delay, o.Vary = span(200_000), span(300_000)
	switch r.IntN(3) {
	case 0:
		o.Ctrl, o.Data = o.Delay+o.Vary, Duration(r.IntN(50_000))
	case 1:
		o.Delay, o.Vary = 0, 0
	}

	if coin(4) {
		o.Prompt = r.Float64()
	}

	o.Schedulers = pick(1, 1, 2, 3)
	if coin(4) {
		o.Skew = r.Float64()
	}

	o.drawTrouble(r)
	if !coin(3) {
		o.drawFaults(r)
	}
	o.drawLearners()
	return o
}

// drawKind draws GPUs of one kind that are unlike, from a stream of its own.
func (o *Options) drawKind() {
	r := rand.New(rand.NewPCG(o.Seed, 6))
	if r.IntN(3) > 0 {
		return
	}
	o.OneKind, o.Unlike = true, r.Float64()
	if r.IntN(2) == 0 {
		o.Beyond = r.Float64()
	}
}

// drawLearners draws spare work from a stream of its own, so that runs without it are what they were.
func (o *Options) drawLearners() {
	r := rand.New(rand.NewPCG(o.Seed, 2))
	if r.IntN(3) > 0 {
		return
	}
	o.Learners, o.SpareStep = 1+r.IntN(3), spareStepLeast+Duration(r.Float64()*9.9e6)
	if r.IntN(2) == 0 {
		o.StepOverruns, o.StepsUntold = 0.1*r.Float64(), 0.05*r.Float64()
		o.LoseSteps = 0.05 * r.Float64()
	}
}

// drawTrouble draws what is no fault but the weather.
func (o *Options) drawTrouble(r *rand.Rand) {
	some := func(most float64) float64 {
		if r.IntN(2) == 0 {
			return 0
		}
		return most * r.Float64() * r.Float64()
	}

	o.PollLate = Duration(some(2e6))
	o.ShufflePolls = r.IntN(2) == 0
	o.Unlike = some(0.5)
	o.Cancels, o.Junk, o.ShortBudgets = some(0.3), some(0.1), some(1)
	if r.IntN(2) == 0 {
		return
	}
	o.ExecLess, o.ExecMore = some(0.5), some(0.5)
	o.Ahead, o.Drift = some(1), some(0.02)
}

func (o *Options) drawFaults(r *rand.Rand) {
	some := func(most float64) float64 {
		if r.IntN(3) > 0 {
			return 0
		}
		return most * r.Float64() * r.Float64()
	}

	count := func(most int) int { return int(some(float64(most) + 0.99)) }
	o.LoseSubmit, o.LoseCancel, o.LoseOutcome, o.LoseOutput = some(0.5), some(1), some(0.5), some(0.5)
	o.LoseExecute, o.LoseDone = some(0.3), some(0.3)
	o.Duplicate, o.Late, o.LateBy = some(0.5), some(0.5), Duration(1e4+r.Float64()*r.Float64()*5e7)
	o.FailItem, o.GiveBack = some(0.2), some(0.5)
	o.Hangs, o.Deaths, o.Breaks, o.Vanishes, o.Slowdowns = count(6), count(8), count(10), count(4), count(6)
	o.Untold, o.BrokenGPUs = r.Float64(), count(3)
	o.Darks, o.SlowLinks, o.DarkFronts = count(10), count(8), count(6)

	// A scheduler that is alone has nobody to take over from it.
	if o.Schedulers > 1 {
		o.LeaderDeaths, o.LeaderPauses, o.StoreCuts, o.Isolations = count(4), count(4), count(4), count(6)
	}
}
