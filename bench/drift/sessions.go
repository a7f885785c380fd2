package drift

import (
	"math"
	"time"

	"downbeat.dev/core/arrivals"
)

// sessionServed is what came of the requests where jobs of sessions serve them (AdaInf §3.3).
type sessionServed struct {
	length   time.Duration // of a session
	finish   float64       // share of the requests that were answered in time
	training float64       // GPUs' worth of time that jobs have left for training
}

// sessionLengths are those that are tried. The paper's is the first: with the 5 ms that this project's ℓ(b) takes for a
// batch of any size it serves half, so the length that serves most is taken.
var sessionLengths = []time.Duration{5, 10, 20, 40, 80, 160, 200}

// simulateSessions serves the setting's requests with jobs: what came in a session of some milliseconds is one job, which
// has what is left of the SLO, L, and an even share of the GPUs among the jobs that are alive at a time. A job answers in
// its share of a GPU, the two models one after the other in the batches that take least, and trains before that for as
// long as L allows. A share of a GPU is a GPU that is slower by as much.
func simulateSessions(s Setting) (best sessionServed) {
	if s.Given != nil {
		return sessionServed{finish: s.Given.Finish, training: s.Given.Learning.Seconds()}
	}

	unit := arrivals.NewUnit(s.Seed, arrivals.Poisson, arrivals.Even(2), s.rate()*servedSpan.Seconds()*1.01+100)
	requests := unit.At(s.rate(), servedSpan, nil)

	for _, length := range sessionLengths {
		length *= time.Millisecond
		got := serveSessions(requests, length, float64(s.GPUs))
		if got.finish > best.finish || got.finish == best.finish && got.training > best.training {
			best = got
		}
	}
	return best
}

// serveSessions runs the jobs of all sessions of a length on some GPUs.
func serveSessions(requests []arrivals.Arrival, length time.Duration, gpus float64) sessionServed {
	// A request that comes first in its session has waited for the session's end when the job begins.
	life := slo - length

	// A job runs on one GPU at most: more than that would stand idle.
	share := min(1, gpus*float64(length)/float64(life))
	got := sessionServed{length: length}
	inTime, trained := 0, time.Duration(0)

	for at := 0; at < len(requests); {
		var n [2]int
		end := (requests[at].At/length + 1) * length
		for ; at < len(requests) && requests[at].At < end; at++ {
			n[requests[at].Model]++
		}

		answered, left := runJob(n, time.Duration(float64(life)*share))
		inTime += answered
		trained += left
	}
	got.finish = float64(inTime) / float64(max(1, len(requests)))
	got.training = trained.Seconds() / servedSpan.Seconds()
	return got
}

// runJob answers a job's requests in GPU time of its own, one batch after the other, and returns how many it answers and
// how much time is left.
func runJob(requests [2]int, budget time.Duration) (answered int, left time.Duration) {
	left = budget
	for _, n := range requests {
		size := bestBatch(n)
		for n > 0 {
			batch := min(n, size)
			if left < answerTime(batch) {
				return answered, 0
			}
			left -= answerTime(batch)
			n -= batch
			answered += batch
		}
	}
	return answered, left
}

// bestBatch returns the batch size at which n requests take least: ⌈n/b⌉·ℓ(b).
func bestBatch(n int) (best int) {
	least := time.Duration(math.MaxInt64)
	for b := 1; b <= batchMax; b++ {
		if took := time.Duration((n+b-1)/b) * answerTime(b); took < least {
			best, least = b, took
		}
	}
	return best
}
