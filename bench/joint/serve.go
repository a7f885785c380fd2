package joint

import (
	"slices"
	"time"

	"downbeat.dev/core/sim"
)

// serving is a policy's way to serve a trace: its changes of the World, and its Server.
type serving struct {
	models   []sim.Model    // by service
	streams  []stream       // admitted
	again    bool           // a dropped request of a frame is made again
	fixed    []int          // by service: the network, for policies that start models without variants
	learners []*sim.Learner // spare work in the World
	bought   float64        // share of GPU time that they buy
	server   func(w *sim.World, f *sim.Frames) sim.Server
	stopAt   func(session int, inTime bool) (stop bool) // ends a run early, when set
}

// serve runs a trace under a policy.
func (t *trace) serve(s serving) (*outcome, error) {
	w := &sim.World{Models: s.models, GPUs: gpus, Arrivals: slices.Clone(t.requests), Rates: t.rates(s.streams), Learners: s.learners, LearnShare: s.bought}
	// Set the rates for policies that plan by them: Arrivals do not contain the requests of frames.
	for g := range gpus {
		w.Kinds = append(w.Kinds, uint8(kindOf(g)))
	}

	o := t.newOutcome(s.streams)
	frames := sim.NewFrames(w, sim.Duration(hop), t.describeSessions(s.streams, s.again), func(session int, begun, _ sim.Time, inTime bool) {
		if begun >= sim.Time(t.warm) {
			o.countFrame(t, s.streams[session], session, inTime)
		}
		if s.stopAt != nil && s.stopAt(session, inTime) {
			w.Result.Aborted = true
		}
	})

	// A policy starts variants where it has a choice, and models where it has none.
	w.Answered = func(_, model, variant int32, _, finish sim.Time, requests []int32) {
		o.countAnswers(t, w, model, w.Models[model].Variants[variant].Accuracy, finish, requests)
	}
	w.Trace = func(_, model int32, _, finish sim.Time, requests []int32) {
		o.countAnswers(t, w, model, t.services[model].networks[s.fixed[model]].accuracy, finish, requests)
	}

	// A Server that can cancel removes the other requests of a frame that has lost one.
	server := s.server(w, frames)
	if c, ok := server.(sim.Canceler); ok {
		frames.CancelBy(c)
	}
	r := w.Run(server)
	o.busy, o.end = time.Duration(r.Busy), time.Duration(r.End)
	o.learning = time.Duration(r.Spare.Time)
	if r.Aborted {
		return o, nil
	}
	return o, frames.Check()
}

// familiesOf returns all services with all their networks, for policies that choose among them.
func (t *trace) familiesOf() (all []sim.Model) {
	for i := range t.services {
		all = append(all, t.services[i].modelWith(t.services[i].networks))
	}
	return all
}

// fixedAt returns all services with one network each, the best or the lightest.
func (t *trace) fixedAt(best bool) (all []sim.Model) {
	for i := range t.services {
		n := t.services[i].networks
		if best {
			all = append(all, t.services[i].modelWith(n[:1]))
		} else {
			all = append(all, t.services[i].modelWith(n[len(n)-1:]))
		}
	}
	return all
}
