//go:build !rdma || !linux || !cgo

package rdma

import (
	"fmt"
	"time"
)

const verbsReason = "built without the tag rdma"

// verbsDevice is the verbs provider's device; there is none in this build.
type verbsDevice struct{}

func openVerbs(*Node) (*verbsDevice, error) {
	return nil, fmt.Errorf("%w: %s", ErrNotSupported, verbsReason)
}

func (*conn) sendDirect(uint64, [][]byte, int) bool { return false }

func verbsAvailable() Availability { return Availability{Name: "verbs", Reason: verbsReason} }

func (*verbsDevice) offer(*conn) error                   { return ErrNotSupported }
func (*verbsDevice) accept(*conn, verbsFrame)            {}
func (*verbsDevice) accepted(*conn, verbsFrame) error    { return ErrNotSupported }
func (*verbsDevice) grant(*conn, *segment, uint64) error { return ErrNotSupported }
func (*verbsDevice) granted(*conn, grantedBody) error    { return ErrNotSupported }
func (*verbsDevice) refused(*conn)                       {}
func (*verbsDevice) broken(*conn, string)                {}
func (*verbsDevice) poll() int                           { return 0 }
func (*verbsDevice) spin() time.Duration                 { return 0 }
func (*verbsDevice) busy() bool                          { return false }
func (*verbsDevice) arm()                                {}
func (*verbsDevice) event()                              {}
func (*verbsDevice) channel() int                        { return -1 }
func (*verbsDevice) bury()                               {}
func (*verbsDevice) close()                              {}
