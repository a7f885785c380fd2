package control

import "downbeat.dev/core/wire"

// Standing is what a peer knows of one scheduler of its cluster.
type Standing struct {
	Up    bool   // a session with it is open
	Leads bool   // as it told last
	Epoch uint64 // as it told last
}

// Obeyed returns which scheduler a peer obeys: the one that leads in the highest epoch that any of them has told, if
// its session is open; -1: none. was is the one obeyed until now, which stays if it may, and highest the highest epoch
// heard until now; the second result is the one heard now.
func Obeyed(all []Standing, was int, highest uint64) (int, uint64) {
	// An epoch counts even if its leader is out of reach: who led before it may not give orders any more.
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

// Told is what one backend has told a scheduler of whom it follows.
type Told struct {
	GPUs     int
	Follows  *wire.Follow // the latest; nil: it has told nothing
	Followed uint64       // the latest epoch whose leader it had a link with
}

// NewView returns what backends tell together. epoch is the highest that the scheduler, or any of its frontends, has
// heard of. GPUs whose backend follows the newest epoch and hears its leader are alive; those that followed it and do
// not are lost.
func NewView(epoch uint64, backends []Told) View {
	v := View{Epoch: epoch}
	for i := range backends {
		if f := backends[i].Follows; f != nil {
			v.Epoch = max(v.Epoch, f.Epoch)
		}
	}

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
