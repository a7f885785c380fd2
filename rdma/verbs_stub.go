//go:build !rdma || !linux || !cgo

package rdma

import "fmt"

const verbsReason = "built without the tag rdma"

func openVerbs(*Node) (device, error) {
	return nil, fmt.Errorf("%w: %s", ErrNotSupported, verbsReason)
}

func verbsAvailable() Availability { return Availability{Reason: verbsReason} }
