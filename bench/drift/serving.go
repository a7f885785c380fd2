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
	idle   float64 // share of the GPUs' time without a batch
}

// simulateServing runs Downbeat's scheduler on the setting's requests in virtual time. It serves for all policies,
// which differ only in learning.
func simulateServing(s Setting, share float64) (served, error) {
	// All of the given time is for learning: Spare is already applied.
	if s.Given != nil {
		return served{finish: s.Given.Finish, idle: s.Given.Learning.Seconds() / (s.Spare * float64(s.GPUs))}, nil
	}

	// Simulate a share of a GPU as a GPU that is slower by that factor.
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
