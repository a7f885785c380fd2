package sim

import (
	"math"
	"time"

	"downbeat.dev/core/app"
)

// Length and limits of a trial of sessions.
const (
	trialWarm    = time.Second // warm-up, in which the scheduler learns the rates; not counted
	trialMost    = time.Minute
	sessionShare = 0.99 // share of each session's frames that must be in time
	trialCtrl    = Duration(200e3)
	trialData    = Duration(50e3) // per input
)

// Trial runs sessions together in virtual time under core/sched and reports whether each would have sessionShare of
// its frames in time. It is an app.Trial. Its time is bounded: it ends after trialSpan with little strain, at the
// first session that has lost too many frames, or after enough requests to predict the result of a longer run.
func Trial(c app.Capacity, all []app.Promise) bool {
	r := takeBuffers()
	t := newTrial(c, all, trialMost, r)
	t.strained = true
	t.run()
	t.returnBuffers(r)
	return t.kept
}

// KeepsPromises runs sessions for span and reports whether each had sessionShare of its frames in time.
func KeepsPromises(c app.Capacity, all []app.Promise, span time.Duration) bool {
	t := newTrial(c, all, span, &trialBuffers{})
	t.run()
	return t.kept
}

// trial is one run of promised sessions.
type trial struct {
	w        *World
	sessions []Session
	frames   *Frames
	slack    []float64 // by session: the part of its latency that a frame may wait
	depth    Time      // the longest latency
	strained bool      // the trial also ends by strain
	kept     bool
	spare    []int  // by session: frames that it may still lose within the whole span
	ended    []int  // by session: frames after the warm-up
	lost     []int  // likewise
	all, bad int    // frames of all sessions: ended, and lost
	look     Time   // next check whether the result is known
	took     []took // by second
}

func newTrial(c app.Capacity, all []app.Promise, span time.Duration, r *trialBuffers) *trial {
	t := &trial{spare: make([]int, len(all)), ended: make([]int, len(all)), lost: make([]int, len(all))}
	if c.GPUs < 1 {
		return t
	}
	t.w, t.sessions = worldOf(c, all, span)
	t.slack = make([]float64, len(all))
	t.kept = true

	// How many frames each session may lose, and how long its frames may wait.
	for i := range t.sessions {
		s := &t.sessions[i]
		frames := float64(Time(span)-max(s.First, Time(trialWarm))) / float64(s.Period)
		t.spare[i] = int(frames*(1-sessionShare) + 0.5)
		t.slack[i] = float64(max(1, s.Latency-t.w.leastTime(s.Stages)))
		t.depth = max(t.depth, Time(s.Latency))
	}
	t.frames = &Frames{hop: Duration(c.Hop), w: t.w, sessions: t.sessions, done: t.frameEnded}
	t.useBuffers(r)
	t.frames.makeFrames(true)
	return t
}

// run runs the trial to its end.
func (t *trial) run() {
	if t.w == nil || len(t.w.Arrivals) == 0 {
		return // hooks make no requests
	}
	d := NewDownbeat(t.w)
	t.frames.CancelBy(d)
	t.w.Run(d)

	// A short trial may lose few frames although a longer one would lose many, so the strain decides as well.
	if t.strained && t.kept {
		t.kept = t.isKept()
	}
}

// trialBuffers is the memory of an ended trial, reused by the next one.
type trialBuffers struct {
	w World
	f Frames
}

// bufferPool is not a sync.Pool: sessions open rarely, so the collector would free the memory in between, and its page
// faults took a quarter of a decision's time. If more trials run at a time than bufferPool holds, the others allocate
// their own.
var bufferPool = make(chan *trialBuffers, 2)

// buffersMost bounds the kept memory, in requests: a trial on thousands of GPUs makes far more.
const buffersMost = 8 * requestsMost

func takeBuffers() *trialBuffers {
	select {
	case r := <-bufferPool:
		return r
	default:
		return &trialBuffers{}
	}
}

func (t *trial) useBuffers(r *trialBuffers) {
	w, f := t.w, t.frames
	w.Arrivals, w.due, w.open, w.added = r.w.Arrivals[:0], r.w.due[:0], r.w.open[:0], r.w.added[:0]
	f.owner, f.frames, f.left, f.until, f.made = r.f.owner[:0], r.f.frames[:0], r.f.left[:0], r.f.until[:0], r.f.made[:0]
}

// returnBuffers keeps the trial's memory for the next one and clears what it holds of the sessions.
func (t *trial) returnBuffers(r *trialBuffers) {
	if w, f := t.w, t.frames; w != nil && cap(f.owner) <= buffersMost {
		r.w = World{Arrivals: w.Arrivals, due: w.due, open: w.open, added: w.added}
		r.f = Frames{owner: f.owner, frames: f.frames, left: f.left, until: f.until, made: f.made}
	}
	select {
	case bufferPool <- r:
	default:
	}
}

// frameEnded counts a frame, and ends the trial when its result is known.
func (t *trial) frameEnded(session int, begun, ended Time, inTime bool) {
	if t.strained {
		t.noteTook(session, ended, ended.Sub(begun))
	}
	if begun >= Time(trialWarm) {
		t.ended[session]++
		t.all++
		if !inTime {
			t.lost[session]++
			t.bad++
			t.kept = t.kept && t.lost[session] <= t.spare[session]
		}
	}

	if !t.kept || t.strained && t.isTold() {
		t.w.Result.Aborted = true
	}
}

// leastTime returns the shortest time of a frame with these stages: if nothing waits, its longest path takes it.
func (w *World) leastTime(stages []Stage) (least Duration) {
	for j := range stages {
		s := &stages[j]
		takes := s.Fixed
		if s.Model != Hook {
			of := w.Models[s.Model].Profile
			takes = w.Lead(1) + Duration(of.Exec(min(of.Max(), max(s.FanOut, 1))))
		}
		least = max(least, takes+s.Rest)
	}
	return least
}

// SessionResult counts a session's frames and those in time.
type SessionResult struct{ Frames, InTime int }

// RunPromises runs each session until its end while GPUs are killed, and counts how the frames ended. Requests on a
// killed GPU are made again elsewhere if time is left.
func RunPromises(c app.Capacity, all []app.Promise, ends []time.Duration, losses []Loss) []SessionResult {
	w, sessions := worldOf(c, all, 0)
	for i := range sessions {
		sessions[i].Last = Time(ends[i])
	}
	w.Losses = losses
	kept := make([]SessionResult, len(all))

	frames := NewFrames(w, Duration(c.Hop), sessions, func(session int, _, _ Time, inTime bool) {
		kept[session].Frames++
		if inTime {
			kept[session].InTime++
		}
	})
	d := NewDownbeat(w)
	frames.CancelBy(d)
	w.Run(d)
	return kept
}

// worldOf builds a World with GPUs and sessions.
func worldOf(c app.Capacity, all []app.Promise, span time.Duration) (*World, []Session) {
	w := &World{GPUs: c.GPUs, Ctrl: trialCtrl, Data: trialData}
	models := map[[2]string]int32{}
	sessions := make([]Session, len(all))

	for i := range all {
		p := &all[i]
		sessions[i] = Session{Latency: Duration(p.Latency), Period: Duration(p.Period()), First: Time(p.Phase), Last: Time(span),
			Stages: make([]Stage, len(p.Graph.Steps))}

		rest := p.Graph.Rest(p.Profiles, c.Hop)
		for j := range p.Graph.Steps {
			step := &p.Graph.Steps[j]
			stage := &sessions[i].Stages[j]
			*stage = Stage{Model: Hook, Fixed: Duration(step.Fixed), After: step.After, Offset: Duration(p.Offsets[j]), Rest: Duration(rest[j])}
			if step.Model == "" {
				continue
			}

			// A model without a measured profile takes time but no GPU.
			of := p.Profiles(j)
			if of == nil {
				stage.Fixed = Duration(step.Least)
				continue
			}

			// Steps with the same model share its queue, also across sessions.
			key := [2]string{step.Model, step.Version}
			m, known := models[key]
			if !known {
				m = int32(len(w.Models))
				models[key] = m
				w.Models = append(w.Models, Model{Name: step.Model, Profile: of, SLO: Duration(max(p.Latency-p.Offsets[j], of.Exec(1)))})
				w.Rates = append(w.Rates, 0)
			}

			// A stage makes whole requests. The rate that the scheduler plans with is the mean.
			stage.Model, stage.FanOut = m, int(math.Ceil(p.Graph.FanOut(j)))
			w.Rates[m] += p.Rate * p.Graph.FanOut(j)
		}
	}
	return w, sessions
}
