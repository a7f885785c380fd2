package nettest

import (
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// readCount counts RDMA READ requests on our link: proof that no processor answered the reads.
type readCount struct {
	n  atomic.Int64
	on bool
}

// countReads listens on our link to the place until the test ends. Without verbs it counts nothing.
func (p *place) countReads(t testing.TB) *readCount {
	t.Helper()
	c := &readCount{on: p.provider == "verbs"}
	if !c.on {
		return c
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
	if err != nil {
		t.Fatalf("packet socket: %v", err)
	}
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var b [128]byte
		for {
			select {
			case <-stop:
				unix.Close(fd)
				return
			default:
			}
			if n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_TRUNC); err == nil && isRead(b[:min(n, len(b))]) {
				c.n.Add(1)
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-ended })
	return c
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// isRead reports whether a packet is a READ request of a reliable connection in RoCE v2: UDP to port 4791, opcode 12.
func isRead(b []byte) bool {
	const udp, port, opcode = 17, 4791, 12
	if len(b) < 20 || b[0]>>4 != 4 || b[9] != udp {
		return false
	}
	head := int(b[0]&15) * 4
	return len(b) > head+8 && int(b[head+2])<<8|int(b[head+3]) == port && b[head+8] == opcode
}

// check fails if there were fewer READs than least.
func (c *readCount) check(t testing.TB, least int64) {
	t.Helper()
	if !c.on {
		return
	}
	for end := time.Now().Add(5 * time.Second); c.n.Load() < least && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("READ requests on the wire: %d", c.n.Load())
	if c.n.Load() < least {
		t.Errorf("%d READ requests on the wire, want %d or more", c.n.Load(), least)
	}
}
