package control

import "downbeat.dev/core/wire"

// Standing is a peer's knowledge of one scheduler of its cluster.
type Standing struct {
	Up    bool   // a session with it is open
	Leads bool   // as last reported
	Epoch uint64 // as last reported
}

// Obeyed returns the index of the scheduler that a peer obeys; -1 if none. It is the leader of the highest epoch that
// any scheduler has reported, if its session is open. was is the previous one, which stays on a tie; highest is the
// highest epoch until now. The second result is the new highest epoch.
func Obeyed(all []Standing, was int, highest uint64) (int, uint64) {
	// An epoch counts even if its leader is out of reach: earlier leaders may not give orders any more.
	for _, s := range all {
		highest = max(highest, s.Epoch)
	}

	best := -1
	for i, s := range all {
		if s.Up && s.Leads && s.Epoch == highest && (best < 0 || i == was) {
			best = i
		}
	}
	return best, highest
}

// Told is one backend's report of whom it follows.
type Told struct {
	GPUs     int
	Follows  *wire.Follow // the latest; nil: no report yet
	Followed uint64       // the latest epoch with whose leader it had a link
}

// NewView sums up the backends' reports. epoch is the highest that the scheduler or any of its frontends has heard
// of. GPUs whose backend follows the newest epoch and hears its leader are alive; those whose backend followed it and
// no longer hears it are lost.
func NewView(epoch uint64, backends []Told) View {
	v := View{Epoch: epoch}
	for i := range backends {
		if f := backends[i].Follows; f != nil {
			v.Epoch = max(v.Epoch, f.Epoch)
		}
	}

	// Reports of older epochs say nothing about the newest leader.
	for i := range backends {
		b := &backends[i]
		v.GPUs += b.GPUs
		switch f := b.Follows; {
		case f == nil || f.Epoch < v.Epoch:
		case f.Alive:
			v.Alive += b.GPUs
		case b.Followed == v.Epoch:
			v.Lost += b.GPUs
		}
	}
	return v
}
