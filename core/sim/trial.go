package sim

import (
	"math"
	"time"

	"downbeat.dev/core/app"
)

// How long a trial of sessions is, and what it asks of them.
const (
	trialWarm    = time.Second     // in which the scheduler learns the rates; it is not counted
	trialSpan    = 5 * time.Second // after which sessions that fit easily have passed
	easyDepth    = 2               // latencies before that, at least
	easyShare    = 0.01            // of their requests that were made again, at most, with no frame lost
	trialMost    = time.Minute
	requestsMost = 8_000 // of a trial on up to manyGPUs: what bounds its time. On more, as many more
	manyGPUs     = 16
	growthEasy   = 0.02                   // of their latency that later frames took longer, where five seconds are enough
	growthMost   = 0.03                   // beyond it a backlog grows, which may cost nobody a frame yet
	growthSpan   = 10 * Time(time.Second) // of a trial for which that holds: in a shorter one less growth is as fast
	lookFrom     = 2 * Time(time.Second)
	lookEach     = Time(250e6)
	framesLeast  = 300   // that tell that a trial is lost
	sessionShare = 0.99  // of each session's frames must be in time
	strainMost   = 1     // of a trial, see trial.strain
	strainHalt   = 3     // strain that no longer run would mend
	toldRequests = 4_000 // that tell a refusal
	toldBeyond   = 0.3   // strainMost, after these: a longer run seldom mends it
	trialCtrl    = Duration(200e3)
	trialData    = Duration(50e3) // for each input
)

// Trial runs sessions together in virtual time, with core/sched in charge, and reports whether each will have its share of
// frames in time. It is an app.Trial. Its time is bounded: it ends when five seconds have shown no strain, with the first session that has
// lost too much, or after so many requests that what they suffered tells how a longer time would end.
func Trial(c app.Capacity, all []app.Promise) bool {
	r := takeRoom()
	t := newTrial(c, all, trialMost, r)
	t.strained = true
	t.run()
	t.leaveRoom(r)
	return t.kept
}

// KeepsPromises runs sessions for span, and reports whether each had its share of frames in time.
func KeepsPromises(c app.Capacity, all []app.Promise, span time.Duration) bool {
	t := newTrial(c, all, span, &room{})
	t.run()
	return t.kept
}

// trial is one run of promises.
type trial struct {
	w        *World
	sessions []Session
	frames   *Frames
	depth    Time // the longest latency
	strained bool // it ends by strain, too
	kept     bool
	easy     bool   // it has ended because nothing was strained
	spare    []int  // by session: frames that it may still lose within the whole span
	ended    []int  // by session: frames, after the warm-up
	lost     []int  // likewise
	all, bad int    // frames of all sessions that ended, and were lost
	look     Time   // when it is next asked whether the end is known
	took     []took // by second
}

// took is how much of their latency the frames took that ended in one second.
type took struct{ shares, frames float64 }

func newTrial(c app.Capacity, all []app.Promise, span time.Duration, r *room) *trial {
	t := &trial{spare: make([]int, len(all)), ended: make([]int, len(all)), lost: make([]int, len(all))}
	if c.GPUs < 1 {
		return t
	}
	t.w, t.sessions = worldOf(c, all, span)
	t.kept = true

	for i := range t.sessions {
		s := &t.sessions[i]
		frames := float64(Time(span)-max(s.First, Time(trialWarm))) / float64(s.Period)
		t.spare[i] = int(frames*(1-sessionShare) + 0.5)
		t.depth = max(t.depth, Time(s.Latency))
	}
	t.frames = &Frames{hop: Duration(c.Hop), w: t.w, sessions: t.sessions, done: t.frameEnded}
	t.useRoom(r)
	t.frames.makeFrames(true)
	return t
}

// run runs the trial to its end.
func (t *trial) run() {
	if t.w == nil || len(t.w.Arrivals) == 0 {
		return // hooks alone ask nobody
	}
	d := NewDownbeat(t.w)
	t.frames.CancelBy(d)
	t.w.Run(d)

	if t.strained && t.kept {
		t.kept = t.isKept()
	}
}

// room is the memory of a trial that has ended, for the next one.
type room struct {
	w World
	f Frames
}

// rooms are kept for good, unlike those of a sync.Pool: sessions open seldom, and until the next one the collector would have given the
// pages back, whose faults took a quarter of a decision's time. Of more decisions at a time than there are rooms each makes its own.
var rooms = make(chan *room, 2)

// roomMost bounds what is kept, in requests: a trial on thousands of GPUs makes as many as it likes.
const roomMost = 8 * requestsMost

func takeRoom() *room {
	select {
	case r := <-rooms:
		return r
	default:
		return &room{}
	}
}

func (t *trial) useRoom(r *room) {
	w, f := t.w, t.frames
	w.Arrivals, w.due, w.open, w.added = r.w.Arrivals[:0], r.w.due[:0], r.w.open[:0], r.w.added[:0]
	f.owner, f.frames, f.left, f.until, f.made = r.f.owner[:0], r.f.frames[:0], r.f.left[:0], r.f.until[:0], r.f.made[:0]
}

// leaveRoom leaves the memory as the trial has grown it, and nothing that it knows of its sessions.
func (t *trial) leaveRoom(r *room) {
	if w, f := t.w, t.frames; w != nil && cap(f.owner) <= roomMost {
		r.w = World{Arrivals: w.Arrivals, due: w.due, open: w.open, added: w.added}
		r.f = Frames{owner: f.owner, frames: f.frames, left: f.left, until: f.until, made: f.made}
	}
	select {
	case rooms <- r:
	default:
	}
}

// frameEnded counts a frame, and ends the trial when its end is known.
func (t *trial) frameEnded(session int, begun, ended Time, inTime bool) {
	if t.strained {
		t.noteTook(ended, float64(ended-begun)/float64(t.sessions[session].Latency))
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

// isTold says whether what has happened tells how a longer run would end, or has taken as long as a decision may.
func (t *trial) isTold() bool {
	// A cluster of more GPUs needs more requests to last as long.
	requests := float64(len(t.frames.owner)) * manyGPUs / float64(max(t.w.GPUs, manyGPUs))
	if requests >= requestsMost {
		return true
	}
	now := t.w.Now()
	if now < max(t.look, lookFrom) {
		return false
	}
	t.look = now + lookEach

	// The more requests have told, the less would a longer run mend.
	strain := t.strain()
	longer := (requestsMost - requests) / (requestsMost - toldRequests)
	if t.all >= framesLeast && strain > strainHalt || longer <= 1 && strain > strainMost+toldBeyond*longer {
		return true
	}
	t.easy = now >= max(Time(trialSpan), easyDepth*t.depth) && t.bad == 0 && t.againShare() <= easyShare && t.growth() <= growthEasy
	return t.easy
}

// isKept says whether what a trial has seen by its end lets every session keep its promise. Growth is held against the time in which it was seen: a
// trial of more than a hundred sessions has made its requests within four seconds, in which a backlog that would break promises after
// twenty has hardly begun.
func (t *trial) isKept() bool {
	counted := t.w.Now() - Time(trialWarm)
	return t.easy || t.strain() <= strainMost && t.growth() <= growthMost*min(1, float64(counted)/float64(growthSpan))
}

// noteTook notes how much of its latency a frame took.
func (t *trial) noteTook(ended Time, share float64) {
	second := int(ended / Time(time.Second))
	for len(t.took) <= second {
		t.took = append(t.took, took{})
	}
	t.took[second].shares += share
	t.took[second].frames++
}

// growth is how much more of their latency the frames of the later half took than those before, without the warm-up.
func (t *trial) growth() float64 {
	counted := t.took[min(int(trialWarm/time.Second), len(t.took)):]
	mean := func(all []took) float64 {
		var sum took
		for _, x := range all {
			sum.shares, sum.frames = sum.shares+x.shares, sum.frames+x.frames
		}
		return sum.shares / max(sum.frames, 1)
	}
	middle := len(counted) / 2
	return mean(counted[middle:]) - mean(counted[:middle])
}

// againShare is the share of requests that were made once more.
func (t *trial) againShare() float64 {
	return float64(t.frames.again) / float64(max(len(t.frames.owner), 1))
}

// strain says how likely it is that a session breaks its promise within a minute, or that it would have with other phases: beyond 1
// one in eight does. The share of all frames that are lost tells more than what one session has lost in so short a time, the requests that were
// made again are what nearly went wrong, and frames that take longer and longer are what will. The weights are those of a logistic regression over
// random mixes (decisions 0279, 0316).
func (t *trial) strain() float64 {
	excess := -1.0
	for i := range t.lost {
		excess = max(excess, float64(t.lost[i])-(1-sessionShare)*float64(t.ended[i]))
	}
	lost := float64(t.bad) / float64(max(t.all, 1))
	return 0.57*math.Sqrt(1000*lost) + 0.29*math.Sqrt(100*t.againShare()) + 0.17*excess + 2.7*t.growth()
}

// SessionResult is how a session's promise was kept.
type SessionResult struct{ Frames, InTime int }

// RunPromises runs sessions, each until its end, while GPUs are killed, and counts how each one's frames ended. What was on a GPU that is killed
// is asked for again elsewhere, where time is left.
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
