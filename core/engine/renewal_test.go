package engine

import (
	"runtime"
	"testing"

	"downbeat.dev/core/sched"
)

// TestARenewalLetsEveryTurnIn shows that a turn that waits for its partition while prices are renewed waits for the bid of
// one service, not for those of all services.
func TestARenewalLetsEveryTurnIn(t *testing.T) {
	s := newStage(t, Options{})
	h := familyHello("b", 1)
	one := h.Models
	h.Models = nil
	const families = 40
	for n := range families {
		for _, m := range one {
			m.Info.Name, m.Info.Family = m.Info.Name+string(rune('A'+n)), m.Info.Family+string(rune('A'+n))
			h.Models = append(h.Models, m)
		}
	}
	s.mustBackend(h)
	f := s.frontend()
	for id := range uint64(20 * families) {
		f.ask(id+1, "v"+string(rune('A'+id%families)), 50*ms)
		s.run(s.clock.now + ms)
	}

	x, p := &s.e.reg.pricing, s.e.parts[0]
	for i := range x.bidders {
		x.bidders[i].bid.Offers = nil
	}
	bids := func() (n int) { // the partition's lock is held
		for i := range x.bidders {
			if len(x.bidders[i].bid.Offers) > 0 {
				n++
			}
		}
		return n
	}

	s.clock.now += sched.Time(houseEvery)
	p.mu.Lock()
	renewed := make(chan struct{})
	go func() { x.renewPrices(s.clock.now); close(renewed) }()
	before, turns := 0, 0
	for p.mu.waitForOne(renewed) {
		// The next turn waits behind the renewal while this one has the lock.
		came, in := p.mu.came.Load(), make(chan struct{})
		go func() { p.mu.Lock(); close(in) }()
		for p.mu.came.Load() == came {
			runtime.Gosched()
		}
		p.mu.Unlock()
		<-in

		now := bids()
		if now > before+1 {
			t.Fatalf("a turn waited for the bids of %d services, want one at most", now-before)
		}
		before = now
		turns++
	}
	p.mu.Unlock()
	if before < families || turns < families {
		t.Errorf("%d services bade in %d turns, want %d in as many turns at least", before, turns, families)
	}
}

// waitForOne returns true once a goroutine waits for the lock, and false if the channel is closed before.
func (l *lock) waitForOne(done chan struct{}) bool {
	for l.came.Load() == l.got.Load() {
		select {
		case <-done:
			return false
		default:
			runtime.Gosched()
		}
	}
	return true
}
