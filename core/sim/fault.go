package sim

// Fault is one kind of what goes wrong in a Cluster.
type Fault uint8

// The faults. A Report counts how often each happened.
const (
	LostSubmit Fault = iota
	LostCancel
	LostExecute
	LostDone
	LostOutcome
	LostOutput
	Doubled
	Delayed

	FailedItem  // of a batch, told to its frontend by the backend
	UntoldItem  // of a batch, for the scheduler to answer
	GivenBack   // a request that its backend leaves to others
	BrokenGPU   // fails every batch from then on
	Hang        // that ends by itself
	LongHang    // that only the watchdog ends
	Slowdown    // of a backend's GPUs
	BackendDies // and returns
	BackendLinkBreaks
	FrontendLinkBreaks
	FrontendVanishes
	DarkFrontend // whose inputs cannot be read, and which outputs do not reach
	DarkLink     // in one direction or both, for less than it takes to be given up
	SilentLink   // so long that it is given up
	SlowLink
	OldPeer // speaks the protocol's version before

	LeaderDies
	StandbyDies
	LeaderPauses // and goes on where it was
	StoreCut     // of one scheduler
	Isolation    // of one scheduler from some of its peers
	NewLeader    // after the first: what these may lead to
	StaleOrder   // of a scheduler that is no longer obeyed
	Snapshot     // of what the leader has learned, for a standby
	Spared       // of a request whose scheduler has no backend for it: it waits for another leader

	LostStep // the order of a step of spare work
	LostStepEnd
	StepOverran
	StepUntold // its learner hangs, or dies

	FaultCount
)

var faultNames = [FaultCount]string{
	"lost submit", "lost cancel", "lost execute", "lost done", "lost outcome", "lost output", "doubled", "delayed",
	"failed item", "untold item", "given back", "broken gpu", "hang", "long hang", "slowdown", "backend dies",
	"backend's link breaks", "frontend's link breaks", "frontend vanishes", "dark frontend", "dark link", "silent link", "slow link", "old peer",
	"leader dies", "standby dies", "leader pauses", "store cut", "isolation", "new leader", "stale order", "snapshot", "spared",
	"lost step", "lost step end", "step overran", "step untold",
}

// String returns the fault's name.
func (f Fault) String() string { return faultNames[f] }

// happens counts a fault and notes it in the trace.
func (c *Cluster) happens(f Fault, a, b int64) {
	c.report.Faults[f]++
	c.note(f.String(), a, b, 0)
}
