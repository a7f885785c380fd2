package plan

import (
	"cmp"
	"time"
)

// The waits in the steps of a plan.
const (
	idleMost    = 200 * time.Millisecond // that a load waits for its GPU to be idle
	reportMost  = 10 * time.Minute       // that a backend may take for one step
	awayMost    = 3 * time.Second        // that a plan waits for a GPU whose backend is away
	resumeMost  = 30 * time.Second       // that a plan whose scheduler died waits for its GPUs
	loadUnknown = time.Second            // of a load that was never timed, so that all moves cost the same
)

// LoadNow reports whether a load that has waited this long may begin. The best time is while its GPU is idle, but
// after a while it begins in any case.
func LoadNow(idle bool, waited time.Duration) bool { return idle || waited >= idleMost }

// StepOverdue reports whether to stop waiting for a backend's report of a step.
func StepOverdue(waited time.Duration) bool { return waited >= reportMost }

// IsGone reports whether a plan leaves out a GPU whose backend has been away for this long. A broken link usually
// returns within a second. A plan that continues without the GPU may leave a model nowhere that has just left another
// GPU.
func IsGone(away time.Duration) bool { return away >= awayMost }

// ResumeNow reports whether to continue the plan of a dead scheduler: when all its GPUs are here, and after some time
// with those that are.
func ResumeNow(all bool, waited time.Duration) bool { return all || waited >= resumeMost }

// LoadTime is the assumed duration of a load, given the one that a backend reports; 0: not measured.
func LoadTime(reported time.Duration) time.Duration {
	// It comes from outside: bound it, so that sums cannot overflow.
	return cmp.Or(min(max(0, reported), reportMost), loadUnknown)
}
