package engine

import (
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/limits"
	"downbeat.dev/core/sched"
)

// TestAbsenceIsNobodysFault shows that a scheduler that was stopped for seconds does not cut backends for overdue
// batches whose reports wait to be read. It does cut a backend that stays silent.
func TestAbsenceIsNobodysFault(t *testing.T) {
	s := newStage(t, Options{})
	b := s.mustBackend(hello("b", 1, slope, "m"))
	b.hang = true
	f := s.frontend()
	f.ask(1, "m", 50*ms)
	s.run(100 * ms)
	if len(b.batches) != 1 {
		t.Fatalf("batches %v", b.batches)
	}

	s.clock.now += 5000 * ms // SIGSTOP
	s.run(s.clock.now + 500*ms)
	if b.cut {
		t.Error("a backend was cut for the scheduler's own absence")
	}
	s.run(s.clock.now + sched.Time(limits.Engine(0)) + 500*ms)
	if !b.cut {
		t.Error("a backend that stays silent was not cut")
	}
}

// TestSLOsAreBounded shows that an SLO that decisions would refuse is refused with the hello, by name.
func TestSLOsAreBounded(t *testing.T) {
	s := newStage(t, Options{})
	h := hello("b", 1, slope, "m")
	h.Models[0].Info.SLO = int64(2 * time.Hour)
	if _, err := s.backend(h); err == nil || !strings.Contains(err.Error(), "SLO 2h0m0s, want at most 1h0m0s") {
		t.Errorf("an SLO of two hours: %v", err)
	}
}

// TestBatchesCannotBeGuessed shows that the numbers of successive batches in one place do not predict the next.
func TestBatchesCannotBeGuessed(t *testing.T) {
	e, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	p := e.parts[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	gaps := map[uint64]bool{}
	last := uint64(0)
	for range 64 {
		at := p.unusedPlace()
		id := p.wireID(at)
		gaps[(id-last)>>32&0xffffff] = true
		last = id
		p.idle = append(p.idle, at)
	}
	if len(gaps) < 60 {
		t.Errorf("64 batches of one place have %d different distances", len(gaps))
	}
}
