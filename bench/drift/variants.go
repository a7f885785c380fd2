package drift

import (
	"time"

	"downbeat.dev/backend/learn"
	"downbeat.dev/backend/train"
	"downbeat.dev/core/arrivals"
)

// AdaInf's variants S, E, M1 and M2 (§5.2) lack something that leaves more time for training. Each is compared with
// the whole method on the same ground: S where the models are applications of their own, E with early exits, M1 and
// M2 on GPUs whose memory is too small.

// apartShare is the models' shares of the requests where they are applications of their own. The paper states no
// rates; with equal ones an even division is the right one.
var apartShare = []float64{0.8, 0.2}

// serveApart returns the jobs of two applications, one for each model. The jobs of a session divide its space by need
// or, as in variant S, evenly.
func serveApart(evenly bool) jobServing {
	return func(s Setting, _ [2]float64) (sessionServed, error) {
		requests := s.requests(apartShare)
		return bestSessions(func(length time.Duration) sessionServed {
			return serveApplications(requests, length, float64(s.GPUs), evenly)
		}), nil
	}
}

// serveApplications is serveSessions for two jobs in each session.
func serveApplications(requests []arrivals.Arrival, length time.Duration, gpus float64, evenly bool) sessionServed {
	life := slo - length
	space := gpus * float64(length) / float64(life)
	got := sessionServed{length: length, apart: true}
	inTime, all := 0, len(requests)

	for len(requests) > 0 {
		var n [2]int
		n, requests = nextSession(requests, length)

		for i, share := range divideSpace(n, evenly) {
			job := [2]int{}
			job[i] = n[i]
			answered, left := runJob(job, time.Duration(float64(life)*min(1, space*share)), wholeNetworks)
			inTime += answered
			got.each[i] += left.Seconds() / servedSpan.Seconds()
		}
	}

	got.finish = float64(inTime) / float64(max(1, all))
	got.training = got.each[0] + got.each[1]
	return got
}

// divideSpace returns the share of a session's space for each job: by the space in which it would end with its SLO,
// which is proportional to its time on a whole GPU, or evenly.
func divideSpace(n [2]int, evenly bool) (share [2]float64) {
	sum := 0.0
	for i := range n {
		if share[i] = jobTime(n[i]).Seconds(); evenly && n[i] > 0 {
			share[i] = 1
		}
		sum += share[i]
	}

	for i := range share {
		share[i] /= sum
	}
	return share
}

// jobTime returns the time of a job's requests on a whole GPU.
func jobTime(n int) (sum time.Duration) {
	for size := bestBatch(n); n > 0; n -= size {
		sum += answerTime(min(n, size))
	}
	return sum
}

const (
	exitSteps = 300  // of training of the heads, on the first day
	exitRate  = 2e-3 // as when the models' heads were made
	floorStep = 0.05 // A_m is a multiple of it, as the paper's 80 to 95 %
)

// attachExits gives a stream's network two early exits, whose heads are trained on the first day.
func (s *stream) attachExits(library string) (err error) {
	classes := s.net.Head.(train.Classes).N
	for _, after := range []int{2, 3} {
		s.net.Exits = append(s.net.Exits, train.Exit{After: after, Body: []train.Layer{&train.Flatten{}, &train.Dense{Out: classes, Linear: true}}})
	}

	if s.start, err = s.net.ExtendWeights(s.start, s.seed); err != nil {
		return err
	}

	t, err := train.New(s.net, train.Options{Batch: batchMax, Weights: s.start, Library: library, HeadsOnly: true})
	if err != nil {
		return err
	}
	defer t.Close()

	return s.trainFirst(t, exitSteps, exitRate)
}

// floorOf returns A_m of a model: the highest step below the first weights' accuracy, at most 95 %.
func floorOf(accuracy float64) float64 {
	return min(0.95, floorStep*float64(int(accuracy/floorStep)))
}

// exitCost returns the cost of an exit, as a share of the whole network's; exit 0 is the whole network.
func (s *stream) exitCost(exit int) float64 {
	if exit == 0 {
		return 1
	}
	return float64(s.net.ExitNet(exit).Cost().FLOP) / float64(s.net.Cost().FLOP)
}

// chooseExit chooses the structure of an affected model: the first exit that answers the farthest samples as
// accurately as A_m, or the whole network (§3.2). Others answer with the whole network.
func (a *adainf) chooseExit(model int, window []learn.Sample, order []int) error {
	st, m := a.streams[model], a.models[model]
	st.exit = 0

	if m.impact == 0 {
		return nil
	}

	for exit := 1; exit <= len(st.net.Exits); exit++ {
		right, _, err := learn.AnswerAt(exit, st.net, m.serving, window, a.setting.Library)
		if err != nil {
			return err
		}
		if rightAmong(right, order[:divergentCount(len(order), divergentAgree)]) >= m.floor {
			st.exit = exit
			return nil
		}
	}
	return nil
}

// runJobs runs the jobs with the structures that answer now.
func (a *adainf) runJobs() (err error) {
	if !a.exits {
		return nil
	}
	a.jobs, err = a.serve(a.setting, [2]float64{a.streams[0].exitCost(a.streams[0].exit), a.streams[1].exitCost(a.streams[1].exit)})
	return err
}

// serveInMemory returns the jobs on GPUs whose memory holds a part of the parameters. One GPU is simulated with all
// of its memory and with less (0288); the requests in time and the training steps fall by as much.
func serveInMemory(change func(*memorySetting)) jobServing {
	return func(s Setting, cost [2]float64) (sessionServed, error) {
		jobs, m := simulateSessions(s, cost), defaultMemory(s)
		// The whole memory shows what the GPU could do.
		m.resident = 1
		all, err := simulateMemory(m)
		if err != nil {
			return jobs, err
		}

		m.resident = weightResident
		change(&m)
		less, err := simulateMemory(m)
		if err != nil {
			return jobs, err
		}

		jobs.finish *= less.evicting().finish / all.evicting().finish
		jobs.training *= float64(less.steps) / float64(max(1, all.steps))
		return jobs, nil
	}
}

// variantPolicies returns AdaInf's variants S, M1 and M2, each with the whole method under the same conditions.
func variantPolicies() (all []Policy) {
	for _, v := range []struct {
		name    string
		variant adainf
	}{
		{"adainf-apart", adainf{serve: serveApart(false)}}, {"adainf-s", adainf{serve: serveApart(true)}},
		{"adainf-exits", adainf{exits: true}},
		{"adainf-memory", adainf{serve: serveInMemory(func(*memorySetting) {})}},
		{"adainf-m1", adainf{serve: serveInMemory(func(m *memorySetting) { m.apart = true })}},
		{"adainf-m2", adainf{serve: serveInMemory(func(m *memorySetting) { m.byAge = true })}},
	} {
		all = append(all, Policy{Name: v.name, open: variantOf(v.variant), bound: true})
	}
	return all
}
