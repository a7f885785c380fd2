package memory

import "errors"

// ErrNotOffered is the error of a read whose bytes are not offered: a stale key, or out of range.
var ErrNotOffered = errors.New("rdma: read of memory that was not offered")

// EachMin is the least length in bytes of a read that is reported individually when it lands.
const EachMin = 32 << 10

// Read is one one-sided read of a chain. len(Dst) must equal Src.Length, and Dst must lie in a
// Buffer of the local node (providers may need it registered).
type Read struct {
	Dst []byte
	Src Remote
}

// ChainError is passed to done if some reads of a chain failed and the peer is still connected. Reads that it does
// not name succeeded. errors.Is sees Err (ErrNotOffered).
type ChainError struct {
	Failed []int // indexes into the chain, ascending
	Err    error
}

func (e *ChainError) Error() string { return e.Err.Error() }

// Unwrap returns the common cause of the failed reads.
func (e *ChainError) Unwrap() error { return e.Err }

// Refusals collects the refused reads of a chain.
type Refusals struct{ chain *ChainError }

// Add records read i. Calls come in ascending order.
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

// Tell reports a read that has landed, if it is long enough and each is not nil.
func Tell(each func(int), chain []Read, i int) {
	if each != nil && len(chain[i].Dst) >= EachMin {
		each(i)
	}
}
