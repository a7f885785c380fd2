//go:build rdma && linux && cgo

package rdma

/*
#include "verbs.h"
*/
import "C"

// breakPair moves the queue pair to its error state, as a long unplugged cable would. Only tests call it; it is here
// because test files cannot use cgo.
func (p *verbsPair) breakPair() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return ErrClosed
	}
	return checkVerbs(C.db_break(p.qp), "break queue pair")
}
