package sched

import "downbeat.dev/core/profile"

// The states of a model's candidate.
const (
	none    uint8 = iota // nothing queued
	waiting              // the timer is set to when it becomes ripe
	ripe                 // a GPU was requested from the ranker; the timer is set to the head's expiry
)

// model is one model of a Partition. The fields that every request reads come first, in one cache line.
type model struct {
	q       queue
	last    Time     // the latest arrival
	soonest Duration // lead[1] of the quickest way to answer

	gaps gaps
	execution
	timer    Time // waiting: its setting; not later than the candidate becomes ripe
	sub      uint32
	queueMax int32
	offered  int32 // waiting: the size last sent to the ranker, 0: none
	state    uint8
	live     bool
	single   bool // it gains next to nothing from batching
	crowded  bool // too many models share its GPUs for waiting: see crowd

	pace       Pace
	rate       rate
	id         ModelID
	seq        uint64   // of the latest candidate
	debt       Duration // decreases with drops and increases with served requests; see addDebt
	grantAt    Time     // the latest batch
	slo        Duration
	load       float64  // u as of the latest grant
	budget     Duration // usual budget of requests on arrival, at most slo
	margin     Duration // how long before its frontrun a candidate is ripe; see adjustMargin
	priorities priorities
	family     *family // nil: one variant in one sub-cluster, described by execution
}

// execution describes how batches of one variant execute on the GPUs of one sub-cluster. A model's own execution is
// that of the variant and home that it intends to use next. The intention changes with its rate and with prices, and
// a grant may choose another.
type execution struct {
	max     int32 // largest batch: the profile's, or the queue's maximum
	variant uint16
	lead    []Duration // lead[b] = Ctrl + b·Data + ℓ(b)
	exec    []Duration // exec[b] = ℓ(b), 0 ≤ b ≤ max+1; exec[0] = 0
	target  int        // T: the size that a batch reaches at its own frontrun
	prof    *profile.Profile
}
