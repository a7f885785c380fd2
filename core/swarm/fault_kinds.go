package swarm

// Fault is one kind of fault in a Cluster.
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

	FailedItem  // a request of a batch fails, and the backend tells its frontend
	UntoldItem  // a request of a batch fails, and the scheduler answers it
	GivenBack   // the backend returns a request for others to serve
	BrokenGPU   // every later batch on the GPU fails
	Hang        // ends by itself
	LongHang    // only the watchdog ends it
	Slowdown    // a backend's GPUs are slower for a while
	BackendDies // and returns
	BackendLinkBreaks
	FrontendLinkBreaks
	FrontendVanishes
	DarkFrontend // its inputs cannot be read and outputs do not reach it
	DarkLink     // in one direction or both, shorter than the silence limit
	SilentLink   // longer than the silence limit, so that both ends give the link up
	SlowLink
	OldPeer   // speaks the previous protocol version
	ReadEarly // a backend reads an input before its hook has returned

	LeaderDies
	StandbyDies
	LeaderPauses // and resumes with its old state
	StoreCut     // one scheduler cannot reach the election's store
	Isolation    // one scheduler cannot reach some of its peers
	NewLeader    // an effect: another leader than the first
	StaleOrder   // an order of a scheduler that is no longer obeyed
	Snapshot     // the leader's learned state, sent to standbys
	Spared       // a request without a backend at its scheduler waits for another leader

	LostStep // the order of a step of spare work is lost
	LostStepEnd
	StepOverran
	StepUntold // the learner hangs or dies

	FaultCount
)

var faultNames = [FaultCount]string{
	"lost submit", "lost cancel", "lost execute", "lost done", "lost outcome", "lost output", "doubled", "delayed",
	"failed item", "untold item", "given back", "broken gpu", "hang", "long hang", "slowdown", "backend dies",
	"backend's link breaks", "frontend's link breaks", "frontend vanishes", "dark frontend", "dark link", "silent link", "slow link", "old peer", "read early",
	"leader dies", "standby dies", "leader pauses", "store cut", "isolation", "new leader", "stale order", "snapshot", "spared",
	"lost step", "lost step end", "step overran", "step untold",
}

// String returns the fault's name.
func (f Fault) String() string { return faultNames[f] }

// happens counts a fault and adds it to the trace.
func (c *Cluster) happens(f Fault, a, b int64) {
	c.report.Faults[f]++
	c.addMark(f.String(), a, b, 0)
}
