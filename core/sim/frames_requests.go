package sim

import (
	"slices"
)

// makeRequests makes n requests of a frame's stage.
func (f *Frames) makeRequests(of owner, at, deadline Time, n int) {
	// Owners are indexed by request number, so the World must number requests as Frames does.
	first := f.w.Add(at, f.stages(of.frame)[of.stage].Model, deadline, n)
	if int(first) != len(f.owner) {
		panic("sim: frames share their World with other requests")
	}

	latest := &f.frames[of.frame].latest
	for r := range int32(n) {
		of.before, *latest = *latest, first+r
		f.owner = append(f.owner, of)
	}
}

// tryAgain makes a dropped request again if its frame has time beyond what the later stages need.
func (f *Frames) tryAgain(own owner, at Time) bool {
	fr, s := &f.frames[own.frame], &f.stages(own.frame)[own.stage]
	latest := fr.begun.Add(f.sessions[fr.session].Latency - s.Rest)
	if fr.ended || own.again || s.Rest == 0 || s.Rest >= s.Offset || latest <= at {
		return false
	}

	f.again++
	f.makeRequests(owner{frame: own.frame, stage: own.stage, again: true}, at, latest, 1)
	return true
}

// killNoticed is the time in which a frontend notices that a backend is gone: it already suspects the link.
const killNoticed = Duration(200e6)

// askElsewhere makes a request again after its GPU was killed, as frontends do (decision 0106), if its deadline, or
// that of a second attempt, has not passed.
func (f *Frames) askElsewhere(r int32, own owner, at Time) bool {
	if f.frames[own.frame].ended {
		return false
	}

	at = at.Add(killNoticed)
	if deadline := f.w.Deadline(r); at < deadline {
		f.makeRequests(owner{frame: own.frame, stage: own.stage, again: own.again}, at, deadline, 1)
		return true
	}
	return f.tryAgain(own, at)
}

// requestEnded is the World's Ended.
func (f *Frames) requestEnded(r int32, o Outcome, at Time) {
	own := f.owner[r]
	if own.frame == nobody {
		return
	}

	// The frame does not count a request that is made again.
	if o == Killed && f.askElsewhere(r, own, at) || o == Dropped && f.tryAgain(own, at) {
		return
	}

	fr := &f.frames[own.frame]
	stage := fr.at + own.stage

	f.left[stage]--
	f.until[stage] = max(f.until[stage], at)
	switch {
	case fr.ended:
	case o == Dropped || o == Killed:
		// Cancel the frame's other requests in the World's next turn: the scheduler is in the middle of its own.
		f.endFrame(own.frame, at, false)
		f.cancel = append(f.cancel, own.frame)
	case f.left[stage] == 0:
		f.stageEnded(own.frame, own.stage, f.until[stage])
	}
}

// requestsOf lists the requests of a frame in the order in which they were made. The slice is valid until the next
// call.
func (f *Frames) requestsOf(i int32) []int32 {
	f.made = f.made[:0]
	for r := f.frames[i].latest; r >= 0; r = f.owner[r].before {
		f.made = append(f.made, r)
	}
	slices.Reverse(f.made)
	return f.made
}

// SessionOf returns a request's session; ok is false if it belongs to none.
func (f *Frames) SessionOf(r int32) (session int, ok bool) {
	own := f.owner[r]
	if own.frame == nobody {
		return 0, false
	}
	return int(f.frames[own.frame].session), true
}
