package sim

import (
	"math"
	"time"
)

// When a trial tells its result, and by what.
const (
	trialSpan    = 5 * time.Second // length of a trial that shows little strain
	easyDepth    = 2               // shortest length of such a trial, in latencies of the slowest session
	easyStrain   = 0.75            // largest strain of such a trial, which loses no frame
	requestsMost = 5_000           // limit of a trial on up to manyGPUs, to bound its time; proportionally more on more GPUs
	manyGPUs     = 16
	lookFrom     = 2 * Time(time.Second)
	lookEach     = Time(250e6)
	framesLeast  = 300   // smallest number of frames that can show that a trial is lost
	strainMost   = 0.97  // largest strain of a kept trial, see trial.estimateStrain
	driftMost    = 0.05  // largest drift of a kept trial that is shorter than a latency
	strainHalt   = 2     // strain at which a longer run would not help
	toldRequests = 2_500 // smallest number of requests that can refuse a trial by less strain
	toldBeyond   = 1     // margin above strainMost after toldRequests; it shrinks to 0 at requestsMost
)

// took sums the frames that ended in one second, the seconds that they took, and the shares of their slack that they
// used: of the part of a latency that a frame may wait.
type took struct{ frames, seconds, shares float64 }

// isTold reports whether the trial predicts a longer run's result, or has taken the time that a decision may take.
func (t *trial) isTold() bool {
	// A larger cluster needs more requests for the same length of time.
	requests := float64(len(t.frames.owner)) * manyGPUs / float64(max(t.w.GPUs, manyGPUs))
	if requests >= requestsMost {
		return true
	}
	now := t.w.Now()
	if now < max(t.look, lookFrom) {
		return false
	}
	t.look = now + lookEach

	// The more requests have run, the less a longer run would change.
	strain := t.estimateStrain()
	longer := (requestsMost - requests) / (requestsMost - toldRequests)
	if t.all >= framesLeast && strain > strainHalt || longer <= 1 && strain > strainMost+toldBeyond*longer {
		return true
	}
	return now >= max(Time(trialSpan), easyDepth*t.depth) && t.bad == 0 && strain <= easyStrain
}

// isKept reports whether every session would keep its promise, judged at the end of the trial. Where a latency is longer
// than the trial, a backlog that grows loses no frame in it.
func (t *trial) isKept() bool {
	return t.estimateStrain() <= strainMost && (t.countedTime() >= t.depth || t.slowdown() <= driftMost)
}

// noteTook adds a frame that took a time.
func (t *trial) noteTook(session int, ended Time, time Duration) {
	second := int(ended / 1e9)
	for len(t.took) <= second {
		t.took = append(t.took, took{})
	}
	x := &t.took[second]
	x.frames++
	x.seconds += float64(time) / 1e9
	x.shares += 1 - float64(t.sessions[session].Latency-time)/t.slack[session]
}

// meanByHalf returns the means over the frames of the counted time's first and second half.
func (t *trial) meanByHalf() (first, second took) {
	counted := t.countedSeconds()
	middle := len(counted) / 2
	return meanOf(counted[:middle]), meanOf(counted[middle:])
}

func (t *trial) countedSeconds() []took { return t.took[min(int(trialWarm/time.Second), len(t.took)):] }

// meanOf returns the means over the frames of some seconds.
func meanOf(seconds []took) (mean took) {
	for _, x := range seconds {
		mean.frames, mean.seconds, mean.shares = mean.frames+x.frames, mean.seconds+x.seconds, mean.shares+x.shares
	}
	mean.seconds /= max(mean.frames, 1)
	mean.shares /= max(mean.frames, 1)
	return mean
}

// countedTime returns the time that has passed since the warm-up.
func (t *trial) countedTime() Time { return max(1, t.w.Now()-Time(trialWarm)) }

// slowdown returns by how many seconds per second frames take longer in the second half than in the first.
func (t *trial) slowdown() float64 {
	first, second := t.meanByHalf()
	return (second.seconds - first.seconds) / (float64(t.countedTime()) / 2e9)
}

// estimateStrain estimates the risk that a session breaks its promise within a minute: at 1, one in eight does. It adds
// the share of lost frames over all sessions (more reliable in a short trial than one session's), the share of requests
// made again (near misses), the share of their slack that frames use and its growth per second, and the share of time
// that GPUs are busy: a backlog grows only while they are. The weights are those of a logistic regression over random
// mixes (decision 0360).
func (t *trial) estimateStrain() float64 {
	lost := float64(t.bad) / float64(max(t.all, 1))
	again := float64(t.frames.again) / float64(max(len(t.frames.owner), 1))
	first, second := t.meanByHalf()
	used := meanOf(t.countedSeconds()).shares
	now := float64(t.w.Now()) / 1e9
	busy := min(1, float64(t.w.Result.Busy)/1e9/float64(t.w.GPUs)/now)
	return 0.09*(math.Sqrt(1000*lost)+math.Sqrt(100*again)) + 22*(second.shares-first.shares)/now + 1.6*used + 2.8*(busy-0.9)
}
