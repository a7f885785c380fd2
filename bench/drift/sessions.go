package drift

import (
	"math"
	"time"

	"downbeat.dev/core/arrivals"
)

// sessionServed is the result of serving requests in jobs of sessions (AdaInf §3.3).
type sessionServed struct {
	length   time.Duration // of a session
	finish   float64       // share of the requests answered in time
	training float64       // GPU time that jobs leave for training, in GPUs
}

// sessionLengths are the tried lengths. The paper's is the first; with this project's ℓ(b), 5 ms for a batch of any
// size, it serves only half of the requests, so the length that serves most is used.
var sessionLengths = []time.Duration{5, 10, 20, 40, 80, 160, 200}

// simulateSessions serves the setting's requests in jobs. The requests of a session of some milliseconds form one
// job. A job has the rest of the SLO, L, and an equal share of the GPUs among the jobs alive at a time. A job answers
// in its share of a GPU, the two models one after another in the batches that take least, and before that trains for
// as long as L allows. A share of a GPU is a GPU that is slower by that factor.
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
	// The first request of a session has waited for the session's end when the job begins.
	life := slo - length

	// A job runs on at most one GPU: more would be idle.
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

// runJob answers a job's requests within a budget of GPU time, one batch after another. It returns the number of
// answers and the remaining time.
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

// bestBatch returns the batch size with the shortest time for n requests: ⌈n/b⌉·ℓ(b).
func bestBatch(n int) (best int) {
	least := time.Duration(math.MaxInt64)
	for b := 1; b <= batchMax; b++ {
		if took := time.Duration((n+b-1)/b) * answerTime(b); took < least {
			best, least = b, took
		}
	}
	return best
}
