package plan

import (
	"cmp"
	"time"
)

// What steps of a plan wait for.
const (
	idleMost    = 200 * time.Millisecond // that a load waits for its GPU to be idle
	reportMost  = 10 * time.Minute       // that a backend may take for one step
	awayMost    = 3 * time.Second        // that a plan waits for a GPU whose backend is away
	resumeMost  = 30 * time.Second       // that a plan whose scheduler died waits for GPUs that it knew
	loadUnknown = time.Second            // a load that nobody has timed: then all moves cost alike
)

// LoadNow says whether a load that has waited so long may begin: best while its GPU is idle, and after some time in any case.
func LoadNow(idle bool, waited time.Duration) bool { return idle || waited >= idleMost }

// StepOverdue says whether a backend's report of a step is waited for no longer.
func StepOverdue(waited time.Duration) bool { return waited >= reportMost }

// IsGone says whether a GPU whose backend has been away for so long is left out of a plan. A link that breaks is there again within a
// second as a rule, and a plan that goes on without its GPU may leave a model nowhere that had just left another one.
func IsGone(away time.Duration) bool { return away >= awayMost }

// ResumeNow reports whether to continue the plan of a dead scheduler: once all its GPUs are here, and after some time
// with those that are.
func ResumeNow(all bool, waited time.Duration) bool { return all || waited >= resumeMost }

// LoadTime is the assumed duration of a load, given its measured duration; 0: not measured.
func LoadTime(timed time.Duration) time.Duration { return cmp.Or(timed, loadUnknown) }
