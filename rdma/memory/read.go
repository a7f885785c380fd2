package memory

import "errors"

// ErrNotOffered is what a read ends with whose bytes were not offered: a stale key, or out of range.
var ErrNotOffered = errors.New("rdma: read of memory that was not offered")

// EachMin is the length in bytes from which a read is worth a call of its own when it lands.
const EachMin = 32 << 10

// Read is one one-sided read of a chain. len(Dst) must equal Src.Length, and Dst must lie in a
// Buffer of the local node (providers may need it registered).
type Read struct {
	Dst []byte
	Src Remote
}

// ChainError is what done gets when some reads of a chain failed and the peer is still there.
// Reads that are not named were filled. errors.Is sees Err (ErrNotOffered).
type ChainError struct {
	Failed []int // indexes into the chain, ascending
	Err    error
}

func (e *ChainError) Error() string { return e.Err.Error() }

// Unwrap returns the cause common to the failed reads.
func (e *ChainError) Unwrap() error { return e.Err }

// Refusals collects the reads of a chain that were not offered.
type Refusals struct{ chain *ChainError }

// Add notes read i. Calls come in ascending order.
func (r *Refusals) Add(i int) {
	if r.chain == nil {
		r.chain = &ChainError{Err: ErrNotOffered}
	}
	r.chain.Failed = append(r.chain.Failed, i)
}

// Err is a *ChainError, or nil if no read was refused.
func (r *Refusals) Err() error {
	if r.chain == nil {
		return nil
	}
	return r.chain
}

// Tell tells of a read that has landed, if somebody wants to know and it is long enough.
func Tell(each func(int), chain []Read, i int) {
	if each != nil && len(chain[i].Dst) >= EachMin {
		each(i)
	}
}
