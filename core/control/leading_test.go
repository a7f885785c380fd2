package control

import (
	"net"
	"slices"
	"syscall"
	"testing"

	"downbeat.dev/core/wire"
)

// toldSocket accepts all writes and records them.
type toldSocket struct {
	syscall.RawConn
	note func()
}

func (s toldSocket) Write(func(fd uintptr) bool) error { s.note(); return nil }

// TestBackendsHearFirstWhoLeads: a frontend that hears of a new leader submits at once. Its batch may be written to a
// backend before the leader has told that backend, which then drops the batch as the order of a scheduler that it
// does not obey. So all backends are told before any frontend.
func TestBackendsHearFirstWhoLeads(t *testing.T) {
	h := open(t, ServerOptions{Standby: true})
	kinds := []sessionKind{frontendSession, backendSession, standbySession, frontendSession, backendSession}
	var told []sessionKind

	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	for _, kind := range kinds {
		near, far := net.Pipe()
		defer far.Close()
		c, w := &session{s: h.s, version: wire.Version}, newWriter(near, WriteQueueMax)
		w.raw = toldSocket{note: func() { told, w.left = append(told, kind), nil }}
		c.kind.Store(uint32(kind))
		c.w.Store(w)

		h.s.sessions[c] = struct{}{}
		defer func() {
			delete(h.s.sessions, c)
			w.closeFor(net.ErrClosed)
		}()
	}

	for range 32 { // two walks over the sessions have different orders
		told = nil
		h.s.tellLead()
		if len(told) != len(kinds) || slices.Contains(told[slices.Index(told, frontendSession):], backendSession) {
			t.Fatalf("told in the order %v; frontends are %v, backends %v", told, frontendSession, backendSession)
		}
	}
}
