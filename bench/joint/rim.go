package joint

import (
	"context"
	"math"
	"time"

	"downbeat.dev/bench/sessions"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sim"
)

const (
	// spaceGain is the speed-up of a GPU that runs several requests at a time: the middle of the published 8 to 99 %
	// (Rim F10b).
	spaceGain = 1.38
	// chunkShare is the share of an older GPU that one stream of a family takes: a family asks as several sessions
	// (Rim's R7).
	chunkShare = 0.25
)

// serveRim is Rim: sessions are placed on workers by their shares, at the best quality that fits, and requests run
// alone, on their session's workers. Where the method does not apply: a family is as many sessions of one module as
// its rate fills, whose frames are its requests; a request that can no longer be in time is dropped; nothing learns.
func serveRim(_ context.Context, t *trace) (*outcome, error) {
	r := t.placeByRim()
	s := serving{models: t.aloneOf(), streams: r.streams(t), server: func(w *sim.World, f *sim.Frames) sim.Server {
		r.w, r.frames = w, f
		return r
	}}
	return t.serve(s)
}

// rim is Rim's workers as a Server.
type rim struct {
	w      *sim.World
	frames *sim.Frames
	t      *trace
	place  []sessions.Place // by stream of the trace
	admits []int            // admitted streams
	chunks [][]sessions.Place
	turn   []int // by family: the chunk that gets the next request
	queues [gpus][]queued
}

// queued is a request that waits for its worker.
type queued struct {
	request, model, variant int32
}

// placeByRim places all streams with Rim, and then the families' chunks.
func (t *trace) placeByRim() *rim {
	w := sessions.Workload{Workers: gpus, Times: func(app, module, quality, worker int) time.Duration {
		return t.aloneTime(t.serviceOf(app, module), quality, kindOf(worker))
	}}

	// The applications ask first, then the families, each as an application of one module.
	for k := range t.apps {
		a := &t.apps[k]
		described := sessions.Application{Name: a.name, Latency: a.latency}
		most := 1
		for j, m := range a.modules {
			var after []int32
			for _, before := range m.after {
				after = append(after, int32(before))
			}
			described.Modules = append(described.Modules, sessions.Module{Name: m.name, FanOut: m.fanOut, CPU: m.fixed, After: after})
			most = max(most, len(t.services[a.first+j].networks))
		}
		described.Qualities = make([]sessions.Quality, most)
		w.Apps = append(w.Apps, described)
	}
	for f := range families {
		w.Apps = append(w.Apps, sessions.Application{Name: families[f].name, Latency: t.services[f].slo, Modules: []sessions.Module{{FanOut: 1}},
			Qualities: make([]sessions.Quality, len(t.services[f].networks))})
	}

	for _, s := range t.streams {
		w.Streams = append(w.Streams, sessions.Stream{App: s.app, FPS: s.fps, Until: t.span})
	}

	// Small pieces fill a worker best.
	counts := make([]int, len(families))
	for f := range families {
		rate := t.times * t.services[f].rate
		counts[f] = int(math.Ceil(rate * t.aloneTime(f, 0, 0).Seconds() / chunkShare))
		for range counts[f] {
			w.Streams = append(w.Streams, sessions.Stream{App: len(t.apps) + f, FPS: rate / float64(counts[f]), Until: t.span})
		}
	}

	// Use the final places: a stream that Rim demotes for later ones is demoted from the start.
	all := sessions.PlaceByRim(w, 1)
	r := &rim{t: t, place: all[:len(t.streams)], turn: make([]int, len(families))}
	for i, p := range r.place {
		if p.Workers != nil {
			r.admits = append(r.admits, i)
		}
	}
	next := len(t.streams)
	for _, n := range counts {
		r.chunks = append(r.chunks, all[next:next+n])
		next += n
	}
	return r
}

// serviceOf returns the service of a module of Rim's applications: the trace's, then the families.
func (t *trace) serviceOf(app, module int) int {
	if app < len(t.apps) {
		return t.apps[app].first + module
	}
	return app - len(t.apps)
}

// aloneTime returns the time of a request that runs alone, beside others on its GPU.
func (t *trace) aloneTime(service, quality, kind int) time.Duration {
	n := t.services[service].networks
	return time.Duration(float64(n[min(quality, len(n)-1)].profiles[kind].Exec(1)) / spaceGain)
}

// aloneOf returns all services with networks that run one request at a time.
func (t *trace) aloneOf() (all []sim.Model) {
	for i := range t.services {
		s := &t.services[i]
		networks := make([]network, len(s.networks))
		for q := range networks {
			networks[q] = network{name: s.networks[q].name, accuracy: s.networks[q].accuracy}
			for kind := range kinds {
				one, err := profile.New([]time.Duration{t.aloneTime(i, q, kind)})
				if err != nil {
					panic(err) // a time of a published profile is positive
				}
				networks[q].profiles[kind] = one
			}
		}
		all = append(all, s.modelWith(networks))
	}
	return all
}

// streams returns the admitted streams.
func (r *rim) streams(t *trace) (in []stream) {
	for _, i := range r.admits {
		in = append(in, t.streams[i])
	}
	return in
}

// Arrive implements sim.Server.
func (r *rim) Arrive(now sim.Time, request, model int32) {
	var at sessions.Place
	module := 0
	if session, ok := r.frames.SessionOf(request); ok {
		stream := r.admits[session]
		at = r.place[stream]
		module = int(model) - r.t.apps[r.t.streams[stream].app].first
	} else {
		// A family's sessions get its requests in turn.
		of := r.chunks[model]
		at = of[r.turn[model]%len(of)]
		r.turn[model]++
	}

	if at.Workers == nil {
		r.w.Drop(request)
		return
	}

	// An application has one quality; a module with fewer networks uses its lightest one.
	quality := min(at.Quality, len(r.t.services[model].networks)-1)
	worker := at.Workers[module]
	r.queues[worker] = append(r.queues[worker], queued{request, model, int32(quality)})
	r.serveWorker(now, worker)
}

// serveWorker starts, on a free worker, the request with the earliest deadline.
func (r *rim) serveWorker(now sim.Time, worker int) {
	if r.w.FreeAt(int32(worker)) > now {
		return
	}

	// Drop hopeless requests until one can be in time.
	for len(r.queues[worker]) > 0 {
		all := r.queues[worker]
		first := 0
		for i := range all {
			if r.w.Deadline(all[i].request) < r.w.Deadline(all[first].request) {
				first = i
			}
		}
		next := all[first]
		all[first] = all[len(all)-1]
		r.queues[worker] = all[:len(all)-1]

		took := r.w.Models[next.model].Variants[next.variant].Profiles[kindOf(worker)].Exec(1)
		if now.Add(sim.Duration(took)) <= r.w.Deadline(next.request) {
			r.w.StartVariant(now, int32(worker), next.model, next.variant, []int32{next.request})
			return
		}
		r.w.Drop(next.request)
	}
}

// Done implements sim.Server.
func (r *rim) Done(now sim.Time, gpu int32) { r.serveWorker(now, int(gpu)) }

// Wake implements sim.Server.
func (r *rim) Wake(sim.Time) {}

// NextWake implements sim.Server.
func (r *rim) NextWake() sim.Time { return never }
