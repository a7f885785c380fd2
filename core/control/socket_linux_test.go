package control

import (
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"downbeat.dev/core/wire"
)

// TestKernelGivesUpOnADeadNetwork shows that the sockets of both ends have the limit.
func TestKernelGivesUpOnADeadNetwork(t *testing.T) {
	h := open(t, ServerOptions{})
	link, err := DialFrontend(ctx(t), DialOptions{Addr: h.addr}, wire.FrontendHello{}, newCaller())
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()

	// The scheduler says that it leads in a separate frame after its welcome.
	waitFor(t, "the leader to be known", func() bool { return link.(*frontendLink).leaderWriter() != nil })
	conns := []net.Conn{link.(*frontendLink).leaderWriter().conn}
	h.s.mu.Lock()
	for c := range h.s.sessions {
		conns = append(conns, c.raw)
	}
	h.s.mu.Unlock()
	for i, c := range conns {
		raw, err := c.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		limit := 0
		raw.Control(func(fd uintptr) { limit, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) })
		if err != nil || limit != int(QuietMax.Milliseconds()) {
			t.Errorf("end %d: TCP_USER_TIMEOUT %d, %v; want %d ms", i, limit, err, QuietMax.Milliseconds())
		}
	}
}
