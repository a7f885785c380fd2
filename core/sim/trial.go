package sim

import (
	"math"
	"slices"
	"time"

	"downbeat.dev/core/app"
)

// How long a trial of sessions is, and what it asks of each.
const (
	trialSpan  = 5 * time.Second
	trialDepth = 8    // latencies that a trial takes at least: a backlog of one is nobody's loss yet
	longFrames = 4000 // of a longer trial, after one that does not tell
	longLeast  = 10 * time.Second
	longMost   = time.Minute
	trialWarm  = time.Second // in which the scheduler learns the rates; it is not counted
	trialShare = 0.99        // of each session's frames
	easyShare  = 0.01        // of requests that are made again, at most, where five seconds are enough
	trialCtrl  = Duration(200e3)
	trialData  = Duration(50e3) // for each input
)

// Trial runs sessions together in virtual time, with core/sched in charge, and reports whether each has its share of
// frames in time. It is an app.Trial. Five seconds, or eight latencies, tell whether sessions fit easily, or by no means; those in
// between run for longer.
func Trial(c app.Capacity, all []app.Promise) bool {
	span := trialSpan
	for i := range all {
		span = max(span, trialDepth*all[i].Latency)
	}
	longSpan := max(span, longSpanOf(all))

	kept, again := tryPromises(c, all, span, longSpan)
	if !kept || again <= easyShare {
		return kept
	}
	kept, _ = tryPromises(c, all, longSpan, longSpan)
	return kept
}

// longSpanOf is how long the frames of a longer trial take: few sessions run for longer than many.
func longSpanOf(all []app.Promise) time.Duration {
	rate := 0.0
	for i := range all {
		rate += all[i].Rate
	}
	return min(longMost, max(longLeast, time.Duration(longFrames/rate*float64(time.Second))))
}

// KeepsPromises is Trial over any span, without a shorter one before.
func KeepsPromises(c app.Capacity, all []app.Promise, span time.Duration) bool {
	kept, _ := tryPromises(c, all, span, span)
	return kept
}

// SessionResult is how a session's promise was kept.
type SessionResult struct{ Frames, InTime int }

// RunPromises runs sessions, each until its end, while GPUs are killed, and counts how each one's frames ended. A frame that had a
// request on a GPU when it was killed counts as lost, although its frontend asks once more where time is left: the worst case.
func RunPromises(c app.Capacity, all []app.Promise, ends []time.Duration, losses []Loss) []SessionResult {
	w, sessions := worldOf(c, all, 0)
	for i := range sessions {
		sessions[i].Last = Time(ends[i])
	}
	w.Losses = losses
	kept := make([]SessionResult, len(all))

	var killed [][]int32 // requests
	w.Trace = func(gpu, _ int32, _, finish Time, requests []int32) {
		for i := range losses {
			if l := &losses[i]; l.GPU == gpu && w.Now() < l.At && finish > l.At {
				killed = append(killed, slices.Clone(requests))
			}
		}
	}

	inTime := map[frameOf]bool{}
	frames := NewFrames(w, Duration(c.Hop), sessions, func(session int, begun, _ Time, ok bool) {
		kept[session].Frames++
		if ok {
			kept[session].InTime++
			inTime[frameOf{session, begun}] = true
		}
	})
	d := NewDownbeat(w)
	frames.CancelBy(d)
	w.Run(d)

	// Each frame is taken back once, however many of its requests were lost.
	for _, requests := range killed {
		for _, r := range requests {
			f := &frames.frames[frames.owner[r].frame]
			if key := (frameOf{int(f.session), f.begun}); inTime[key] {
				delete(inTime, key)
				kept[f.session].InTime--
			}
		}
	}
	return kept
}

// frameOf names a frame: no session begins two at a time.
type frameOf struct {
	session int
	begun   Time
}

// tryPromises runs sessions for span, and ends with the first session that lost more than its share of the frames in
// allow. again is the share of requests that were made once more, 1 if a frame was lost.
func tryPromises(c app.Capacity, all []app.Promise, span, allow time.Duration) (kept bool, again float64) {
	if c.GPUs < 1 {
		return false, 1
	}

	w, sessions := worldOf(c, all, span)

	// A session may lose so many of the frames that will come.
	spare := make([]int, len(sessions))
	for i := range sessions {
		s := &sessions[i]
		frames := float64(Time(allow)-max(s.First, Time(trialWarm))) / float64(s.Period)
		spare[i] = int(frames*(1-trialShare) + 0.5)
	}

	kept, lost := true, false
	frames := NewFrames(w, Duration(c.Hop), sessions, func(session int, begun, _ Time, inTime bool) {
		if inTime || begun < Time(trialWarm) {
			return
		}
		lost = true
		if spare[session]--; spare[session] < 0 {
			kept, w.Result.Aborted = false, true
		}
	})
	if len(w.Arrivals) == 0 {
		return kept, 0 // hooks alone ask nobody
	}

	d := NewDownbeat(w)
	frames.CancelBy(d)
	w.Run(d)

	if lost {
		return kept, 1
	}
	return kept, float64(frames.again) / float64(len(frames.owner))
}

// worldOf makes a World of GPUs and the sessions that ask it.
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

			// A model that nobody measured costs nothing but time.
			of := p.Profiles(j)
			if of == nil {
				stage.Fixed = Duration(step.Least)
				continue
			}

			// Steps that name the same model share its queue, whichever sessions they belong to.
			key := [2]string{step.Model, step.Version}
			m, known := models[key]
			if !known {
				m = int32(len(w.Models))
				models[key] = m
				w.Models = append(w.Models, Model{Name: step.Model, Profile: of, SLO: Duration(max(p.Latency-p.Offsets[j], of.Exec(1)))})
				w.Rates = append(w.Rates, 0)
			}
			stage.Model, stage.FanOut = m, int(math.Ceil(p.Graph.FanOut(j)))
			w.Rates[m] += p.Rate * p.Graph.FanOut(j)
		}
	}
	return w, sessions
}
