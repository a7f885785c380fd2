package sched

// A GPU whose batches fail, or take much longer than planned, while those of others do not, gets no batches for a
// while and then one as a trial. The driver reports every batch to Health and holds the GPU as Health says. Models do
// not matter here: if all GPUs behave alike, the requests or the profile are wrong.

// Health is the record of one GPU's latest batches. The zero value is a GPU that was removed, or not added yet; see
// HealthyGPU.
type Health struct {
	failed, slow uint16 // consecutive batches of which every request failed; that took much longer than planned
	holds        uint16 // number of holds since the GPU was sound
	works        bool   // the latest batch did not fail; also true before the first batch
	sound        bool   // nor was it slow
	until        Time   // of the latest hold
}

// Peers are the GPUs that a GPU is compared with: those of its sub-cluster, including itself.
type Peers struct {
	GPUs      int
	Working   int  // the latest batch did not fail
	Sound     int  // nor was it slow
	Elsewhere bool // a GPU that works serves the batch's model in another sub-cluster
}

// Verdict is the conclusion from a batch about its GPU.
type Verdict uint8

// The verdicts.
const (
	Unchanged Verdict = iota
	Recovered         // its trial is over: the hold ends
	Sickened          // hold it, for as long as Hold says
)

// When a GPU is held, and for how long: twice as long each time that it is found sick again.
const (
	failedMost = 4 // consecutive failed batches
	slowMost   = 8 // consecutive slow batches

	holdFirst  = 100e6 // ns
	holdMost   = 10e9  // ns
	holdShifts = 7     // 100 ms to 10 s

	slowShare = 2   // a slow batch exceeds the plan by 1/slowShare of it, and
	slowLeast = 2e6 // by at least this many ns

	// TrialMost is how long a GPU on trial waits for the report of its one batch.
	TrialMost Duration = 1e9
	// StallHold is how long a GPU gets no batches once its backend's link is seen to stall. The observer repeats the
	// call before that time ends, for as long as the stall lasts.
	StallHold Duration = 250e6
)

// IsSlow reports whether a batch took so much longer than planned that jitter does not explain it.
func IsSlow(exec, planned Duration) bool {
	return exec > planned+planned/slowShare+slowLeast
}

// HealthyGPU returns the health of a GPU that has run nothing.
func HealthyGPU() Health { return Health{works: true, sound: true} }

// Works reports whether the latest batch did not fail.
func (h *Health) Works() bool { return h.works }

// Sound reports whether the latest batch did not fail and was not slow.
func (h *Health) Sound() bool { return h.sound }

// OnTrial reports whether the GPU is held, or runs a batch after a hold to show that it is sound.
func (h *Health) OnTrial() bool { return h.holds > 0 }

// Note records one more batch.
func (h *Health) Note(failed, slow bool) {
	h.failed, h.slow = streak(h.failed, failed), streak(h.slow, slow)
	h.works = h.failed == 0
	h.sound = h.works && h.slow == 0
}

// streak returns the new count of consecutive batches: n + 1 if the condition holds again, else 0.
func streak(n uint16, again bool) uint16 {
	if !again {
		return 0
	}
	return min(n+1, 1<<15)
}

// Judge returns the verdict of the batch noted latest. The peers' counts include that batch.
func (h *Health) Judge(now Time, peers Peers) Verdict {
	if h.sound {
		if h.holds == 0 {
			return Unchanged
		}
		h.holds = 0
		return Recovered
	}

	switch {
	case now < h.until: // batches sent before the hold say nothing new
		return Unchanged
	case h.isOutlier(peers):
		return Sickened
	case h.holds > 0: // the others are no longer better: start over
		h.holds, h.failed, h.slow = 0, 0, 0
		return Recovered
	}
	return Unchanged
}

// isOutlier reports whether a GPU has been sick for long enough while others are better. For a failing GPU one peer
// that works is enough, even a slow one; for a slow GPU half of the peers must be sound, since profiles are wrong
// more often than GPUs. The peer that works may be in another sub-cluster that serves the model.
func (h *Health) isOutlier(peers Peers) bool {
	again := h.holds > 0 // on trial one more batch decides
	switch {
	case h.failed >= failedMost || again && h.failed > 0:
		return peers.Elsewhere || peers.Working > 0
	case h.slow >= slowMost || again && h.slow > 0:
		return 2*peers.Sound >= peers.GPUs
	}
	return false
}

// Hold returns the time until which the GPU gets no batches, after its verdict.
func (h *Health) Hold(now Time) (until Time) {
	h.until = now.Add(min(holdMost, Duration(holdFirst)<<min(h.holds, holdShifts)))
	h.holds++
	return h.until
}
