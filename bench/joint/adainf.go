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

// serveAdaInf is AdaInf. A model's requests in a session of some milliseconds form a job, which is answered in
// batches of the size with the smallest ⌈n/b⌉·ℓ(b); GPU time that jobs leave trains the drifting models. Where the
// method does not apply: a family is an application of one model at its best network (AdaInf's early exits belong to
// its own networks); all sessions are admitted.
//
// In its favour: jobs share GPUs in time by their deadlines, where its spaces would have been equal parts; they train
// only in time that no job needs, and delay nobody; of several lengths of sessions, the one that serves most of a
// short trial is used.
func serveAdaInf(_ context.Context, t *trace) (*outcome, error) {
	trial, err := drawTrace(t.seed+trialSeed, t.times, trialSpan)
	if err != nil {
		return nil, err
	}

	// Short sessions waste GPU time on small batches; long ones leave their requests no time.
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

// jobLength returns how long a session collects a service's requests.
type jobLength func(slo time.Duration) time.Duration

// jobLengths are the tried lengths: the paper's 5 ms, and fractions of the SLO.
var jobLengths = []jobLength{
	func(time.Duration) time.Duration { return 5 * time.Millisecond },
	func(slo time.Duration) time.Duration { return max(5*time.Millisecond, slo/8) },
	func(slo time.Duration) time.Duration { return max(5*time.Millisecond, slo/4) },
	func(slo time.Duration) time.Duration { return max(5*time.Millisecond, slo/3) },
	func(slo time.Duration) time.Duration { return slo / 2 },
}

// adaInfTraining returns the GPU time that jobs leave for training. Each application has a share of the GPUs by its
// demand; the shares of models that do not drift train nothing.
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
	// Idle time of other applications stays theirs: AdaInf divides the GPUs before it knows who will use them.
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

// jobs is the Server of AdaInf.
type jobs struct {
	w       *sim.World
	waiting []collecting // by model
	ready   []job        // the earliest deadline first
}

// collecting is a model's session that has not ended.
type collecting struct {
	every    sim.Duration
	end      sim.Time
	requests []int32
}

// job is the unanswered requests of a session.
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

		// Requests of frames have their own deadlines, so they do not arrive in order of deadline.
		slices.SortStableFunc(c.requests, func(a, b int32) int { return cmp.Compare(j.w.Deadline(a), j.w.Deadline(b)) })
		j.ready = append(j.ready, job{int32(i), j.w.Deadline(c.requests[0]), c.requests})
		c.end, c.requests = never, nil
	}
	slices.SortStableFunc(j.ready, func(a, b job) int { return cmp.Compare(a.due, b.due) })
	j.startJobs(now)
}

// startJobs gives the free GPUs batches of the jobs with the earliest deadlines, newer GPUs first.
func (j *jobs) startJobs(now sim.Time) {
	for gpu := int32(gpus - 1); gpu >= 0 && len(j.ready) > 0; gpu-- {
		// Done will be called for a busy GPU.
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

		// The rest of the job waits for the next GPU, by its own deadline.
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

// leastBatch returns the batch size with the shortest time for n requests: ⌈n/b⌉·ℓ(b).
func leastBatch(p *profile.Profile, n int) (best int) {
	least := time.Duration(math.MaxInt64)
	for b := 1; b <= min(n, p.Max()); b++ {
		if took := time.Duration((n+b-1)/b) * p.Exec(b); took < least {
			best, least = b, took
		}
	}
	return best
}
