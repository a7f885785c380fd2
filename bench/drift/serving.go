package drift

import (
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sim"
)

// servedSpan is the simulated time of requests.
const servedSpan = 20 * time.Second

// served is the result of serving with a share of every GPU.
type served struct {
	finish float64 // share of the requests answered in time
	idle   float64 // share of the GPUs' time without a batch; 0 if the result is given
}

// simulateServing runs Downbeat's scheduler on the setting's requests in virtual time. It serves for all policies,
// which differ only in learning.
func simulateServing(s Setting, share float64) (served, error) {
	if s.Given != nil {
		return served{finish: s.Given.Finish}, nil
	}

	w, err := s.describeWorld(share)
	if err != nil {
		return served{}, err
	}
	r := w.Run(sim.NewDownbeat(w))

	bad, total := 0, 0
	for m := range r.Total {
		bad += r.Bad[m]
		total += r.Total[m]
	}
	busy := time.Duration(r.Busy).Seconds() / (float64(s.GPUs) * max(servedSpan.Seconds(), time.Duration(r.End).Seconds()))
	return served{finish: 1 - float64(bad)/float64(total), idle: max(0, 1-busy)}, nil
}

// stepLength is the length of the pieces in which learners train. It is about three of the 160 passes through a layer that a
// training step of the setting's network makes.
const stepLength = 2 * time.Millisecond

// simulateLearning returns the GPU time that learners get in a second, of all models: Downbeat's scheduler serves the setting's
// requests in virtual time, and gives learners the windows in which nobody can be kept waiting.
func simulateLearning(s Setting) (time.Duration, error) {
	if s.Given != nil {
		return s.Given.Learning, nil
	}

	w, err := s.describeWorld(1)
	if err != nil {
		return 0, err
	}

	// One learner for each model: which of them gets the time is decided by what it is worth.
	for i := range w.Models {
		w.Learners = append(w.Learners, &sim.Learner{Step: sim.Duration(stepLength), Shortest: 0.7, Seed: s.Seed<<8 + uint64(i)})
	}
	r := w.Run(sim.NewDownbeat(w))

	// Steps after the last request would count GPUs that nobody else wants.
	return time.Duration(float64(r.Spare.Time) / max(servedSpan.Seconds(), time.Duration(r.End).Seconds())), nil
}

// describeWorld returns the World that serves the setting's requests with a share of every GPU.
func (s Setting) describeWorld(share float64) (*sim.World, error) {
	// A share of a GPU is a GPU that is slower by that factor.
	p, err := profile.Linear(time.Duration(alpha/share), time.Duration(beta/share), batchMax)
	if err != nil {
		return nil, err
	}

	w := &sim.World{GPUs: s.GPUs, Arrivals: s.requests(arrivals.Even(2))}
	for _, name := range []string{"vehicle", "activity"} {
		w.Models = append(w.Models, sim.Model{Name: name, Profile: p, SLO: sim.Duration(slo)})
	}
	return w, nil
}

// rate returns the requests/s of both models together.
func (s Setting) rate() float64 {
	return s.Load * float64(s.GPUs) * batchMax / answerTime(batchMax).Seconds()
}

// answerTime returns the time of a GPU to answer n inputs in full batches; trainTime is that of a training step.
func answerTime(n int) time.Duration {
	batches := (n + batchMax - 1) / batchMax
	return time.Duration(alpha*float64(n) + beta*float64(batches))
}

func trainTime() time.Duration { return trainingCost * answerTime(batchMax) }
