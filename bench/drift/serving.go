package drift

import (
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sim"
)

// servedSpan is how long requests are simulated.
const servedSpan = 20 * time.Second

// served is what came of the requests, with a share of every GPU left to them.
type served struct {
	finish float64 // share of the requests that were answered in time
	idle   float64 // share of the GPUs' time without a batch
}

// simulateServing runs Downbeat's scheduler against the setting's requests in virtual time. All policies are served by it: what
// they differ in is the learning.
func simulateServing(s Setting, share float64) (served, error) {
	// What is given is all for learning: Spare is in it already.
	if s.Given != nil {
		return served{finish: s.Given.Finish, idle: s.Given.Learning.Seconds() / (s.Spare * float64(s.GPUs))}, nil
	}

	// A share of a GPU is simulated as a GPU that is slower by as much.
	p, err := profile.Linear(time.Duration(alpha/share), time.Duration(beta/share), batchMax)
	if err != nil {
		return served{}, err
	}
	unit := arrivals.NewUnit(s.Seed, arrivals.Poisson, arrivals.Even(2), s.rate()*servedSpan.Seconds()*1.01+100)
	w := &sim.World{GPUs: s.GPUs, Arrivals: unit.At(s.rate(), servedSpan, nil)}
	for _, name := range []string{"vehicle", "activity"} {
		w.Models = append(w.Models, sim.Model{Name: name, Profile: p, SLO: sim.Duration(slo)})
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

// rate is the requests/s of both models together.
func (s Setting) rate() float64 {
	return s.Load * float64(s.GPUs) * batchMax / answerTime(batchMax).Seconds()
}

// answerTime is what a GPU takes to answer n inputs in full batches, and trainTime what it takes for a training step.
func answerTime(n int) time.Duration {
	batches := (n + batchMax - 1) / batchMax
	return time.Duration(alpha*float64(n) + beta*float64(batches))
}

func trainTime() time.Duration { return trainingCost * answerTime(batchMax) }
