package sim

import (
	"fmt"
	"slices"
)

// Stage is one step of a session's frames.
type Stage struct {
	Model  int32 // index in the World, or Hook for a stage without requests
	FanOut int   // requests per frame
	Fixed  Duration
	After  []int32  // indexes of the stages before it, each smaller than its own
	Offset Duration // its requests' deadline is the frame's deadline minus Offset
	// Rest is the shortest time that the later stages need. A dropped request is made again, once, with the frame's
	// deadline minus Rest, if that is later than its own deadline. 0: no request is made again.
	Rest Duration
}

// Hook is the Model of a stage that makes no requests and takes Fixed.
const Hook int32 = -1

// Session is a stream of frames through an application's stages.
type Session struct {
	Stages      []Stage
	Latency     Duration
	Period      Duration
	First, Last Time // its first frame, and the end of its frames
}

// Frames drives sessions through a World. It makes a stage's requests when the previous stages have ended. When a
// frame loses a request, its other requests are removed from their queues.
type Frames struct {
	hop      Duration // latency from one stage to the next, and to the client
	done     func(session int, begun, ended Time, inTime bool)
	w        *World
	canceler Canceler
	sessions []Session
	frames   []frame
	owner    []owner  // by request
	cancel   []int32  // frames that failed in this turn
	again    int      // requests made again
	latest   finishes // sessions, by the begin of their latest frame
	left     []int32  // by frame and stage: requests that have not ended; -1: the stage has not begun
	until    []Time   // by frame and stage: the latest end of its requests
	made     []int32  // buffer for the requests of a failed frame
}

// nobody is the frame of a request that belongs to none.
const nobody int32 = -1

// owner is the frame and stage of a request.
type owner struct {
	frame  int32 // nobody: it belongs to no frame
	stage  int32
	before int32 // the frame's previous request; -1: none
	again  bool  // it replaces a dropped request
}

// frame is one frame under way.
type frame struct {
	begun   Time
	session int32
	at      int32 // index of its stages' counts in left and until
	open    int32 // stages that have not ended
	latest  int32 // its latest request; -1: none
	ended   bool
}

// NewFrames makes the frames of all sessions and adds them to w, beside w's own Arrivals, which belong to no frame.
// It sets w's Ended and Turn. Run the World with any Server; if the Server can cancel, pass it to CancelBy. done is
// called at every frame's end, for frames whose stages make no requests at once.
func NewFrames(w *World, hop Duration, sessions []Session, done func(session int, begun, ended Time, inTime bool)) *Frames {
	f := &Frames{hop: hop, w: w, sessions: sessions, done: done}
	f.makeFrames(false)
	return f
}

// makeFrames makes the frames before the World runs. With oneByOne, a frame is made when the previous one begins: w's
// Arrivals then give no rates, and a run that ends early does not make the remaining frames.
func (f *Frames) makeFrames(oneByOne bool) {
	w := f.w
	w.Ended, w.Turn = f.requestEnded, f.advanceFrames

	// Requests outside frames get the first numbers.
	for range w.Arrivals {
		f.owner = append(f.owner, owner{frame: nobody})
	}

	// Make all frames of a session now if no request would signal that a frame has begun.
	for k := range f.sessions {
		s := &f.sessions[k]
		asks := slices.ContainsFunc(s.Stages, func(s Stage) bool { return s.Model != Hook && s.FanOut > 0 })
		for at := s.First; at < s.Last; at = at.Add(s.Period) {
			f.addFrame(int32(k), at)
			if oneByOne && asks {
				f.latest.push(at, int32(k))
				break
			}
		}
	}
}

// addFrame makes a frame of a session and begins its first stages.
func (f *Frames) addFrame(session int32, at Time) {
	stages := f.sessions[session].Stages
	i := int32(len(f.frames))
	f.frames = append(f.frames, frame{session: session, begun: at, at: int32(len(f.left)), open: int32(len(stages)), latest: -1})

	for range stages {
		f.left, f.until = append(f.left, -1), append(f.until, 0)
	}
	for j := range stages {
		if len(stages[j].After) == 0 {
			f.beginStage(i, int32(j), at)
		}
	}
}

// Canceler removes requests from their queues; *Downbeat is one.
type Canceler interface {
	Cancel(now Time, r, model int32) bool
}

// CancelBy sets the Canceler that removes the other requests of a failed frame. Without it they stay queued.
func (f *Frames) CancelBy(c Canceler) { f.canceler = c }

func (f *Frames) stages(i int32) []Stage { return f.sessions[f.frames[i].session].Stages }

// beginStage makes the requests of a stage. A stage without requests ends by itself.
func (f *Frames) beginStage(i, j int32, at Time) {
	fr, s := &f.frames[i], &f.stages(i)[j]

	f.until[fr.at+j] = at
	if s.Model == Hook || s.FanOut == 0 {
		f.left[fr.at+j] = 0
		f.stageEnded(i, j, at.Add(s.Fixed))
		return
	}

	f.left[fr.at+j] = int32(s.FanOut)
	deadline := fr.begun.Add(f.sessions[fr.session].Latency - s.Offset)
	f.makeRequests(owner{frame: i, stage: j}, at, deadline, s.FanOut)
}

// stageEnded begins the stages that waited only for this one, or ends the frame.
func (f *Frames) stageEnded(i, j int32, at Time) {
	fr := &f.frames[i]
	stages := f.stages(i)

	f.until[fr.at+j] = at
	if fr.open--; fr.open == 0 {
		end := slices.Max(f.until[fr.at : int(fr.at)+len(stages)]).Add(f.hop)
		f.endFrame(i, end, end <= fr.begun.Add(f.sessions[fr.session].Latency))
		return
	}

	// A stage has a larger index than those that it waits for, so only later stages can have become ready. One that has
	// not begun is ready only if the last that it waited for has just ended; those that wait for none begin with the frame.
	for k := j + 1; int(k) < len(stages); k++ {
		if f.left[fr.at+k] < 0 && len(stages[k].After) > 0 {
			if ready, from := f.stagesBeforeEnd(fr, &stages[k]); ready {
				f.beginStage(i, k, from.Add(f.hop))
			}
		}
	}
}

// stagesBeforeEnd reports whether all stages before a stage have ended, and when the last of them did.
func (f *Frames) stagesBeforeEnd(fr *frame, s *Stage) (ready bool, from Time) {
	for _, before := range s.After {
		if f.left[fr.at+before] != 0 {
			return false, 0
		}
		from = max(from, f.until[fr.at+before])
	}
	return true, from
}

// endFrame ends a frame, which happens once.
func (f *Frames) endFrame(i int32, at Time, inTime bool) {
	fr := &f.frames[i]
	if fr.ended {
		panic(fmt.Sprintf("sim: frame %d ended twice", i))
	}
	fr.ended = true
	f.done(int(fr.session), fr.begun, at, inTime)
}

// advanceFrames is the World's Turn. It makes the sessions' next frames and cancels the other requests of failed
// frames, which is impossible within the scheduler's own turn.
func (f *Frames) advanceFrames(now Time) {
	// A session whose latest frame has begun gets its next one.
	for f.latest.next() <= now {
		k := f.latest[0].number
		at := f.latest[0].at.Add(f.sessions[k].Period)
		if at >= f.sessions[k].Last {
			f.latest.pop()
			continue
		}
		f.addFrame(k, at)
		f.latest.replaceFirst(finish{at, k, 1})
	}

	for len(f.cancel) > 0 && f.canceler != nil {
		failed := f.cancel

		// Canceled requests end here and may fail further frames; the next round takes those.
		f.cancel = nil
		for _, i := range failed {
			for _, r := range f.requestsOf(i) {
				if f.w.open[r] && f.canceler.Cancel(now, r, f.w.Arrivals[r].Model) {
					f.w.Drop(r)
				}
			}
		}
	}
}

// Check verifies V4 after a run: every frame ended once, with all its stages accounted for.
func (f *Frames) Check() error {
	for i := range f.frames {
		fr := &f.frames[i]
		if !fr.ended {
			return fmt.Errorf("frame %d of session %d never ended", i, fr.session)
		}
		for j := range f.stages(int32(i)) {
			if left := f.left[int(fr.at)+j]; left > 0 {
				return fmt.Errorf("frame %d of session %d: %d requests of stage %d never ended", i, fr.session, left, j)
			}
		}
	}
	return nil
}
