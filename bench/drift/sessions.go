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
	apart    bool          // each model is an application of its own, whose jobs leave each[i]
	each     [2]float64
}

// jobServing runs the jobs of a setting. cost is what each model's answers take, as shares of the whole network's.
type jobServing func(s Setting, cost [2]float64) (sessionServed, error)

// sessionLengths are the tried lengths. The paper's is the first; with this project's ℓ(b), 5 ms for a batch of any
// size, it serves only half of the requests, so the length that serves most is used.
var sessionLengths = []time.Duration{5, 10, 20, 40, 80, 160, 200}

// simulateSessions serves the setting's requests in jobs. The requests of a session of some milliseconds form one
// job. A job has the rest of the SLO, L, and an equal share of the GPUs among the jobs alive at a time. A job answers
// in its share of a GPU, the two models one after another in the batches that take least, and before that trains for
// as long as L allows. A share of a GPU is a GPU that is slower by that factor.
//
// cost is what each model's answers take, as shares of the whole network's.
func simulateSessions(s Setting, cost [2]float64) sessionServed {
	if s.Given != nil {
		return sessionServed{finish: s.Given.Finish, training: s.Given.Learning.Seconds()}
	}

	requests := s.requests(arrivals.Even(2))
	return bestSessions(func(length time.Duration) sessionServed {
		return serveSessions(requests, length, float64(s.GPUs), cost)
	})
}

// wholeNetworks is the cost of answers without early exits.
var wholeNetworks = [2]float64{1, 1}

// requests draws the requests of servedSpan, with each model's share of them.
func (s Setting) requests(share []float64) []arrivals.Arrival {
	unit := arrivals.NewUnit(s.Seed, arrivals.Poisson, share, s.rate()*servedSpan.Seconds()*1.01+100)
	return unit.At(s.rate(), servedSpan, nil)
}

// bestSessions returns the result of the session length that serves most requests, then of the one that leaves most
// time.
func bestSessions(serve func(length time.Duration) sessionServed) (best sessionServed) {
	for _, length := range sessionLengths {
		got := serve(length * time.Millisecond)
		if got.finish > best.finish || got.finish == best.finish && got.training > best.training {
			best = got
		}
	}
	return best
}

// serveSessions runs the jobs of all sessions of a length on some GPUs.
func serveSessions(requests []arrivals.Arrival, length time.Duration, gpus float64, cost [2]float64) sessionServed {
	// The first request of a session has waited for the session's end when the job begins.
	life := slo - length

	// A job runs on at most one GPU: more would be idle.
	share := min(1, gpus*float64(length)/float64(life))
	got := sessionServed{length: length}
	inTime, trained, all := 0, time.Duration(0), len(requests)

	for len(requests) > 0 {
		var n [2]int
		n, requests = nextSession(requests, length)

		answered, left := runJob(n, time.Duration(float64(life)*share), cost)
		inTime += answered
		trained += left
	}
	got.finish = float64(inTime) / float64(max(1, all))
	got.training = trained.Seconds() / servedSpan.Seconds()
	return got
}

// nextSession returns each model's requests of the first session, and the requests of later ones.
func nextSession(requests []arrivals.Arrival, length time.Duration) (n [2]int, later []arrivals.Arrival) {
	end := (requests[0].At/length + 1) * length
	for len(requests) > 0 && requests[0].At < end {
		n[requests[0].Model]++
		requests = requests[1:]
	}
	return n, requests
}

// runJob answers a job's requests within a budget of GPU time, one batch after another. It returns the number of
// answers and the remaining time.
func runJob(requests [2]int, budget time.Duration, cost [2]float64) (answered int, left time.Duration) {
	left = budget
	for i, n := range requests {
		size := bestBatch(n)
		for n > 0 {
			batch := min(n, size)
			took := time.Duration(float64(answerTime(batch)) * cost[i])
			if left < took {
				return answered, 0
			}
			left -= took
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
