package sched

// A GPU whose batches fail, or take much longer than planned, while those of others do not, is kept from batches for a while
// and then tried with one. The driver tells Health every batch and holds the GPU as it says; nothing of this looks at a
// model: where all GPUs do alike, it is the requests or the profile that are wrong.

// Health is what the latest batches of one GPU say of it. The zero value is a GPU that has left, or has not
// come yet; see HealthyGPU.
type Health struct {
	failed, slow uint16 // batches in a row of which every request failed; that took much longer than planned
	holds        uint16 // how often the GPU was held since it was sound
	works        bool   // the latest batch did not fail; so does a GPU that has run none
	sound        bool   // nor was it slow
	until        Time   // of the latest hold
}

// Peers are the GPUs that a GPU is compared with: those of its sub-cluster, itself among them.
type Peers struct {
	GPUs      int
	Working   int  // the latest batch did not fail
	Sound     int  // nor was it slow
	Elsewhere bool // a GPU that works serves the batch's model in another sub-cluster
}

// Verdict is what a batch says of its GPU.
type Verdict uint8

// The verdicts.
const (
	Unchanged Verdict = iota
	Recovered         // its trial is over: it is held no longer
	Sickened          // it is to be held, for as long as Hold says
)

// When a GPU is held, and for how long: twice as long each time that it is found sick again.
const (
	failedMost = 4 // failed batches in a row
	slowMost   = 8 // slow batches in a row

	holdFirst  = 100e6 // ns
	holdMost   = 10e9  // ns
	holdShifts = 7     // 100 ms to 10 s

	slowShare = 2   // one part of what was planned, and
	slowLeast = 2e6 // ns are the least that a slow batch takes beyond that

	// TrialMost is how long a GPU on trial waits for the report of its one batch.
	TrialMost Duration = 1e9
	// StallHold is for how long a GPU gets no batches once its backend's link is seen to stall. Who sees it says so
	// again sooner than that, for as long as it lasts.
	StallHold Duration = 250e6
)

// IsSlow says whether a batch took so much longer than planned that jitter does not explain it.
func IsSlow(exec, planned Duration) bool {
	return exec > planned+planned/slowShare+slowLeast
}

// HealthyGPU returns the health of a GPU that has run nothing.
func HealthyGPU() Health { return Health{works: true, sound: true} }

// Works says whether the latest batch did not fail.
func (h *Health) Works() bool { return h.works }

// Sound says whether the latest batch did not fail and was not slow.
func (h *Health) Sound() bool { return h.sound }

// OnTrial says whether the GPU is held, or runs a batch after that to show that it is sound.
func (h *Health) OnTrial() bool { return h.holds > 0 }

// Note takes in one more batch.
func (h *Health) Note(failed, slow bool) {
	h.failed, h.slow = streak(h.failed, failed), streak(h.slow, slow)
	h.works = h.failed == 0
	h.sound = h.works && h.slow == 0
}

// streak returns how many batches in a row were so, after one more that is or is not.
func streak(n uint16, again bool) uint16 {
	if !again {
		return 0
	}
	return min(n+1, 1<<15)
}

// Judge says what the batch noted latest makes of the GPU. Its peers are counted with that batch.
func (h *Health) Judge(now Time, peers Peers) Verdict {
	if h.sound {
		if h.holds == 0 {
			return Unchanged
		}
		h.holds = 0
		return Recovered
	}

	switch {
	case now < h.until: // what was sent before the hold says nothing new
		return Unchanged
	case h.isOutlier(peers):
		return Sickened
	case h.holds > 0: // the others are no better any more, and it begins anew
		h.holds, h.failed, h.slow = 0, 0, 0
		return Recovered
	}
	return Unchanged
}

// isOutlier says whether a GPU has been sick for long enough while others are better: one of them that works, slow as
// it may be, where it fails; half of them, where it is slow, since profiles are wrong more often than GPUs. The one
// that works may be elsewhere: in another sub-cluster that serves the model.
func (h *Health) isOutlier(peers Peers) bool {
	again := h.holds > 0 // one more batch tells
	switch {
	case h.failed >= failedMost || again && h.failed > 0:
		return peers.Elsewhere || peers.Working > 0
	case h.slow >= slowMost || again && h.slow > 0:
		return 2*peers.Sound >= peers.GPUs
	}
	return false
}

// Hold returns until when the GPU gets no batches, as of its verdict.
func (h *Health) Hold(now Time) (until Time) {
	h.until = now.Add(min(holdMost, Duration(holdFirst)<<min(h.holds, holdShifts)))
	h.holds++
	return h.until
}
