package joint

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

const never = sched.Never

// serveAdaInf is AdaInf: what came of a model in a session of some milliseconds is a job, which is answered in batches of least
// ⌈n/b⌉·ℓ(b), and what jobs leave of the GPUs trains the models that drift. What it does not know: a family is an application of one
// model at its best network (its early exits are of its own networks); all sessions are let in.
//
// In its favour: jobs share GPUs in time by their deadlines, where its spaces would have been cut evenly; they train only in time that no
// job wants, and delay nobody; of some ways to choose the sessions' lengths the one is taken that serves most of a short trial.
func serveAdaInf(_ context.Context, t *trace) (*outcome, error) {
	trial, err := drawTrace(t.seed+trialSeed, t.times, trialSpan)
	if err != nil {
		return nil, err
	}

	// Short sessions waste GPU time on small batches, long ones leave their requests no time.
	best, most := jobLength(nil), -1.0
	for _, length := range jobLengths {
		o, err := trial.serve(trial.byAdaInf(length))
		if err != nil {
			return nil, err
		}
		if rate := o.goodRate(trialSpan); rate > most {
			best, most = length, rate
		}
	}

	o, err := t.serve(t.byAdaInf(best))
	if err != nil {
		return nil, err
	}
	o.learning = t.adaInfTraining(o)
	return o, nil
}

// jobLength is how long a session collects a service's requests.
type jobLength func(slo time.Duration) time.Duration

// jobLengths are those that are tried: the paper's 5 ms, and parts of what a request may take.
var jobLengths = []jobLength{
	func(time.Duration) time.Duration { return 5 * time.Millisecond },
	func(slo time.Duration) time.Duration { return max(5*time.Millisecond, slo/8) },
	func(slo time.Duration) time.Duration { return max(5*time.Millisecond, slo/4) },
	func(slo time.Duration) time.Duration { return max(5*time.Millisecond, slo/3) },
	func(slo time.Duration) time.Duration { return slo / 2 },
}

// adaInfTraining is the GPU time that jobs leave for training: each application has its share of the GPUs by what it needs, and those
// of models that do not drift train nothing.
func (t *trace) adaInfTraining(o *outcome) time.Duration {
	rates := t.rates(t.streams)
	all, drift := 0.0, 0.0
	for i := range t.services {
		need := rates[i] * t.leastCost(i, 0, 1)
		all += need
		if i >= t.apps[0].first && i < t.apps[0].first+len(t.apps[0].modules) {
			drift += need
		}
	}
	// What other applications leave is theirs: AdaInf cuts the GPUs before it knows who will use them.
	idle := gpus*o.end.Seconds() - o.busy.Seconds()
	return time.Duration(idle * drift / all * 1e9)
}

func (t *trace) byAdaInf(length jobLength) serving {
	return serving{models: t.fixedAt(true), streams: t.streams, server: func(w *sim.World, _ *sim.Frames) sim.Server {
		j := &jobs{w: w}
		for i := range t.services {
			every := sim.Duration(length(t.services[i].slo))
			j.waiting = append(j.waiting, collecting{every: every, end: never})
		}
		return j
	}}
}

// jobs is AdaInf's way to serve.
type jobs struct {
	w       *sim.World
	waiting []collecting // by model
	ready   []job        // the one that is due first comes first
}

// collecting is a model's session that has not ended.
type collecting struct {
	every    sim.Duration
	end      sim.Time
	requests []int32
}

// job is what came in a session, less what has been answered.
type job struct {
	model    int32
	due      sim.Time // of its first request
	requests []int32
}

// Arrive implements sim.Server.
func (j *jobs) Arrive(now sim.Time, r, model int32) {
	c := &j.waiting[model]
	if len(c.requests) == 0 {
		c.end = (now/sim.Time(c.every) + 1) * sim.Time(c.every)
	}
	c.requests = append(c.requests, r)
}

// Done implements sim.Server.
func (j *jobs) Done(now sim.Time, _ int32) { j.startJobs(now) }

// NextWake implements sim.Server.
func (j *jobs) NextWake() sim.Time {
	next := never
	for i := range j.waiting {
		next = min(next, j.waiting[i].end)
	}
	return next
}

// Wake implements sim.Server.
func (j *jobs) Wake(now sim.Time) {
	for i := range j.waiting {
		c := &j.waiting[i]
		if c.end > now {
			continue
		}

		// Requests of frames have deadlines of their own, so that they do not come in order.
		slices.SortStableFunc(c.requests, func(a, b int32) int { return cmp.Compare(j.w.Deadline(a), j.w.Deadline(b)) })
		j.ready = append(j.ready, job{int32(i), j.w.Deadline(c.requests[0]), c.requests})
		c.end, c.requests = never, nil
	}
	slices.SortStableFunc(j.ready, func(a, b job) int { return cmp.Compare(a.due, b.due) })
	j.startJobs(now)
}

// startJobs gives the free GPUs batches of the jobs that are due first. Newer GPUs are taken first.
func (j *jobs) startJobs(now sim.Time) {
	for gpu := int32(gpus - 1); gpu >= 0 && len(j.ready) > 0; gpu-- {
		// What is busy will tell of its end.
		if j.w.FreeAt(gpu) <= now {
			j.startNextBatch(now, gpu)
		}
	}
	j.ready = slices.DeleteFunc(j.ready, func(x job) bool { return len(x.requests) == 0 })
}

// startNextBatch starts the first job's next batch that is in time on a GPU.
func (j *jobs) startNextBatch(now sim.Time, gpu int32) {
	for i := range j.ready {
		x := &j.ready[i]
		j.dropLate(now, x)
		if len(x.requests) == 0 {
			continue
		}

		p := j.w.Models[x.model].Variants[0].Profiles[kindOf(int(gpu))]
		b := min(leastBatch(p, len(x.requests)), p.BatchMax(time.Duration(j.w.Deadline(x.requests[0]).Sub(now))))
		if b == 0 {
			continue // a newer GPU may still answer in time
		}
		batch := x.requests[:b]
		x.requests = x.requests[b:]

		// What is left of the job waits for the next GPU, by its own deadline.
		if len(x.requests) > 0 {
			x.due = j.w.Deadline(x.requests[0])
		}
		j.w.StartVariant(now, gpu, x.model, 0, batch)
		return
	}
}

// dropLate drops the requests of a job that no kind of GPU can answer in time.
func (j *jobs) dropLate(now sim.Time, x *job) {
	v := j.w.Models[x.model].Variants[0]
	least := min(v.Profiles[0].Exec(1), v.Profiles[1].Exec(1))
	for len(x.requests) > 0 && now.Add(sim.Duration(least)) > j.w.Deadline(x.requests[0]) {
		j.w.Drop(x.requests[0])
		x.requests = x.requests[1:]
	}
}

// leastBatch is the batch size at which n requests take least: ⌈n/b⌉·ℓ(b).
func leastBatch(p *profile.Profile, n int) (best int) {
	least := time.Duration(math.MaxInt64)
	for b := 1; b <= min(n, p.Max()); b++ {
		if took := time.Duration((n+b-1)/b) * p.Exec(b); took < least {
			best, least = b, took
		}
	}
	return best
}
