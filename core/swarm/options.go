package swarm

import "math/rand/v2"

// Options are the parameters of one run of a Cluster. Durations are ns, probabilities are per message.
type Options struct {
	Seed uint64

	Backends, GPUs     int // GPUs of each backend
	Clusters           int // sub-clusters over which backends and models are spread
	Named              bool
	Models, Frontends  int
	Schedulers         int // 0 and 1: a single scheduler, no election
	Cores, Partitions  int
	QueueMax, LiveMax  int    // engine.Options QueueMax, RequestsMax
	Window             uint32 // size of a frontend's id window; 0: larger than all its ids
	Requests           int
	Span               Duration // of arrivals; 0: the time that Requests take, between 20 ms and 2 s
	Load               float64  // offered, as a share of the GPUs' capacity at good batch sizes
	Burst              int      // largest number of requests at a time
	Tight              bool     // SLOs near ℓ(1)
	Ctrl, Data         Duration
	Prompt             float64
	Delay, Vary        Duration // a message takes Delay to Delay+Vary
	Eager              bool     // backends begin as soon as the inputs are there, as the real one does
	PollLate           Duration // largest delay of wake-ups
	ShufflePolls       bool     // poll loops in random order
	ExecLess, ExecMore float64  // a batch takes ℓ(b)·(1−ExecLess … 1+ExecMore)
	Unlike             float64  // largest relative difference between backends' profiles
	OneKind            bool     // backends report the same kind of GPU in spite of Unlike
	Beyond             float64  // a backend's batches take up to this share longer than its profile says
	Ahead              float64  // share of batches reported before they end
	Drift              float64  // clocks run faster or slower by up to this share
	Cancels, Junk      float64  // share of requests canceled early; share of invalid Submits
	ShortBudgets       float64  // share of requests with a budget of their own
	Priorities         bool
	Hooked, LateHooks  float64  // share of requests whose input a hook prepares; share of these whose hook takes longer than expected
	Hook               Duration // longest expected time of a hook
	Learners           int      // per backend, with spare work
	SpareStep          Duration // longest step of spare work

	LoseSubmit, LoseCancel, LoseExecute, LoseDone, LoseOutcome, LoseOutput float64
	Duplicate, Late                                                        float64
	LateBy                                                                 Duration
	FailItem, GiveBack                                                     float64 // share of a batch's requests
	Untold                                                                 float64 // share of failures that the scheduler answers
	Skew                                                                   float64 // share of peers of the previous version
	Hangs, Deaths, Breaks, Vanishes, Slowdowns, BrokenGPUs                 int
	Darks, SlowLinks, DarkFronts                                           int
	LeaderDeaths, LeaderPauses, StoreCuts, Isolations                      int // for several schedulers
	StepOverruns, StepsUntold, LoseSteps                                   float64

	// Moved models move to another sub-cluster in one plan, or one model moves Again times, in a plan each. All
	// backends then know all models, and the sub-clusters' models are alike.
	Moved, Again int
	MoveAt       Duration // when the first plan is applied; 0: after a tenth of the span
	Epoch        Duration // interval at which schedulers plan by themselves; 0: never. Backends and models are as with Moved
	LoadTime     Duration // of a model, without its warm-up
	KillAt       int      // the leader dies after this many requested placements; 0: never
	Undo         bool     // its successor puts back the previous placement
	AwayAt       int      // a backend leaves for longer than a plan waits, after this many requested placements; 0: never

	// With Variants of 2 or more, models form families of that size, and each sub-cluster is a kind of GPU; the
	// slowest kind takes up to Kinds longer, as a share. Floors is the share of requests for a family that name an
	// accuracy floor.
	Variants      int
	Kinds, Floors float64
}

// mayDelay reports whether anything in the run may delay an output past its deadline.
func (o *Options) mayDelay() bool {
	lossy := o.LoseSubmit + o.LoseCancel + o.LoseExecute + o.LoseDone + o.LoseOutcome + o.LoseOutput + o.Duplicate + o.Late + o.FailItem + o.GiveBack
	events := o.Hangs + o.Deaths + o.Breaks + o.Vanishes + o.Slowdowns + o.BrokenGPUs + o.Darks + o.SlowLinks + o.DarkFronts +
		o.LeaderDeaths + o.LeaderPauses + o.StoreCuts + o.Isolations + o.KillAt + o.AwayAt + o.Moved + o.Again + min(1, int(o.Epoch))
	return lossy > 0 || events > 0 || o.StepOverruns+o.StepsUntold+o.LoseSteps > 0 || !o.Eager || o.Ctrl < o.Delay+o.Vary || o.ExecMore > 0 || o.Ahead > 0 || o.Drift > 0
}

// spareStepLeast is the shortest step of spare work.
const spareStepLeast Duration = 1e5

// raisedToMinimum returns the options with unset values raised to the minimum of a run.
func (o Options) raisedToMinimum() Options {
	for _, n := range []*int{&o.Clusters, &o.GPUs, &o.Frontends, &o.Cores, &o.Partitions, &o.Requests, &o.Burst, &o.Schedulers} {
		*n = max(1, *n)
	}

	// Each sub-cluster needs a backend and a model, and families are complete.
	o.Models, o.Backends = max(o.Models, o.Clusters), max(o.Backends, o.Clusters)

	// A step without duration would be followed by the next one at the same time, for ever.
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

// Calm returns the options without faults, without invalid input, and without anything that makes runs hard to
// compare: it has exact GPUs of one kind, punctual wake-ups, and budgets equal to the models' SLOs.
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
	o.drawHooks()
	return o
}

// drawAlike draws options with GPUs of one kind that are alike, or with GPUs of unknown kind.
func drawAlike(seed uint64) Options {
	// Options have a random stream of their own: a run that draws more numbers does not change them.
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

// drawKind draws GPUs of one kind that differ, from a separate stream.
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

// drawLearners draws spare work from a separate stream, so that runs without it stay unchanged.
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

// drawTrouble draws disturbances that are not faults.
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

	// A single scheduler has no standby to take over.
	if o.Schedulers > 1 {
		o.LeaderDeaths, o.LeaderPauses, o.StoreCuts, o.Isolations = count(4), count(4), count(4), count(6)
	}
}
