package backend

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/emu"
	"downbeat.dev/core/limits"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/internal/logtest"
	"downbeat.dev/internal/sicklink"
	"downbeat.dev/rdma"
)

// sickRig is a rig with a second frontend, number 2, behind a path that the test can disturb.
type sickRig struct {
	*rig
	sick *stub
	path *sicklink.Link
}

func newSickRig(t *testing.T, o rigOptions) sickRig {
	t.Helper()
	// A read is overdue after 2 s with the budgets of mixed, and the backend must not have disconnected the silent
	// path by then.
	o.front.Stall = time.Hour
	own := sicklink.FreeAddr(t)
	s := sickRig{path: sicklink.Open(t, own)}
	s.sick = newStub(t, rdma.Config{Listen: own, Advertise: s.path.Addr(), Providers: []string{"tcp"}, Stall: time.Hour})
	s.rig = newRig(t, o)
	s.meetFrontend(wire.Peer{Frontend: 2, DataAddr: s.sick.node.Addr()})
	return s
}

// mixed returns a batch of one row of each frontend, with times that only a stalled host would miss.
func (s sickRig) mixed(batch uint64) (e wire.Execute, well, sick uint64, in, sickIn []byte) {
	s.ids += 2
	well, sick, in, sickIn = s.ids, s.ids+1<<40, s.input(), s.input()
	e = wire.Execute{Batch: batch, Latest: int64(14 * time.Second)}
	for _, it := range []wire.Item{{Frontend: 2, ID: sick, Input: s.sick.offer(sickIn)}, {Frontend: 1, ID: well, Input: s.front.offer(in)}} {
		it.Budget = us(16 * time.Second)
		e.Items = append(e.Items, it)
	}
	return e, well, sick, in, sickIn
}

// serveBoth sends batches, from a number on, until one has served both frontends. A host that stalls while the
// backend connects to a frontend, or reads from it, makes that frontend suspect for a moment. serveBoth returns that
// batch's request of frontend 2 and its input.
func (s sickRig) serveBoth(batch uint64) (sick uint64, sickIn []byte) {
	s.t.Helper()
	for end := time.Now().Add(patience); ; batch++ {
		e, well, sick, in, sickIn := s.mixed(batch)
		s.Execute([]wire.Execute{e})
		s.checkOutput(well, in)
		if d, _ := s.sched.wait(batch); len(d.Failures) == 0 {
			return sick, sickIn
		}
		if time.Now().After(end) {
			s.t.Fatal("its path is well and it is not served")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// freeSlots waits until all slots of GPU 0 are free.
func (s sickRig) freeSlots() {
	s.t.Helper()
	g := s.gpus[0]
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		g.mu.Lock()
		n := len(g.slots)
		g.mu.Unlock()
		if n == slotsEach {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("%d of %d slots are free", n, slotsEach)
		}
	}
}

// TestLargeInputsMayTakeTheirTime shows that reads that take some time even on a healthy network are not overdue
// before that, whatever the budget. Small reads are as before.
func TestLargeInputsMayTakeTheirTime(t *testing.T) {
	f := &peer{}
	f.conn.Store(&rdma.Peer{})
	for _, c := range []struct {
		bytes, rows int
		budget      time.Duration
		least, most time.Duration
	}{
		{8 << 20, 1, 300 * time.Millisecond, 160 * time.Millisecond, 180 * time.Millisecond},
		{8 << 20, 2, 300 * time.Millisecond, 320 * time.Millisecond, 360 * time.Millisecond},
		{64 << 10, 1, 20 * time.Millisecond, limits.OverdueLeast, limits.OverdueLeast},
		{64, 16, 800 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond},
	} {
		o := &order{model: &device.Model{InBytes: c.bytes, Inputs: make([]device.Tensor, 1)}, came: time.Hour, useful: time.Hour + c.budget}
		if got := o.overdueAfter(&group{o: o, source: f, to: c.rows}); got < c.least || got > c.most {
			t.Errorf("%d rows of %d bytes with %v: overdue after %v, want %v to %v", c.rows, c.bytes, c.budget, got, c.least, c.most)
		}
	}
}

// TestASickFrontendCostsOthersNothing: a frontend behind a path that is slow, silent, or cut in one direction costs
// the others nothing. Their rows of common batches run, long before these must start, and no slot is kept. For the
// frontend's own requests, Done says why they failed and leaves it to the scheduler to give them to others or to tell
// the frontend. When the path is healthy again, the frontend is served again.
func TestASickFrontendCostsOthersNothing(t *testing.T) {
	for name, rates := range map[string][2]int{
		"slow":                 {sicklink.Well, 2 << 10},
		"dark":                 {sicklink.Dark, sicklink.Dark},
		"asks do not arrive":   {sicklink.Dark, sicklink.Well},
		"bytes do not arrive":  {sicklink.Well, sicklink.Dark},
		"one byte at a time":   {sicklink.Well, 2},
		"well, then it is not": {sicklink.Well, sicklink.Well},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			var lines logtest.Buffer
			began := time.Now()
			s := newSickRig(t, rigOptions{alpha: time.Millisecond, beta: time.Millisecond, batchMax: 4, pixels: 20000, plain: true, log: slog.New(slog.NewTextHandler(&lines, nil))})
			sick, sickIn := s.serveBoth(1)
			if a := s.sick.wait(sick); a.Reason != 0 || !bytes.Equal(a.output, emu.Pattern(s.model, sickIn)) {
				t.Fatalf("while its path is well: %v", a.Reason)
			}

			s.path.Set(rates[0], rates[1])
			ill := rates != [2]int{sicklink.Well, sicklink.Well}
			for batch := uint64(1002); batch < 1030; batch++ {
				e, well, _, in, _ := s.mixed(batch)
				s.Execute([]wire.Execute{e})
				s.checkOutput(well, in)
				if ill {
					s.checkFailures(batch, wire.ItemFailure{Index: 0, Reason: model.InputUnavailable, Untold: true})
				}
			}
			s.freeSlots()
			most := 1 + int(time.Since(began)/sayEvery)
			if n := strings.Count(lines.String(), "does not deliver inputs"); ill && (n < 1 || n > most) {
				t.Errorf("said %d times, want once, or %d times at most:\n%s", n, most, lines.String())
			}

			s.path.Set(sicklink.Well, sicklink.Well)
			s.serveBoth(2000)
		})
	}
}

// TestAStalledFrontendIsSuspectBeforeItsReadsAreOverdue: its host became unreachable while nothing was read from it.
// Without the kernel's report, the first batch afterwards would wait for as long as its reads may take, here 2 s.
func TestAStalledFrontendIsSuspectBeforeItsReadsAreOverdue(t *testing.T) {
	t.Parallel() // it mostly waits
	var lines logtest.Buffer
	s := newSickRig(t, rigOptions{alpha: time.Millisecond, beta: time.Millisecond, batchMax: 4, plain: true,
		log: slog.New(slog.NewTextHandler(&lines, nil))})
	s.serveBoth(1)
	if strings.Contains(lines.String(), "does not deliver") { // the host stalled, and that is reported again only after a while
		time.Sleep(sayEvery)
	}
	before := len(lines.String())

	f := s.peers.byID[2]
	if err := s.path.DropArrivals(true); err != nil {
		t.Fatal(err)
	}
	// If the answer to an echo was lost, no other echo is sent, and the kernel has nothing to retransmit.
	ping := time.AfterFunc(time.Second, func() { f.conn.Load().Ping(func(error) {}) })
	defer ping.Stop()

	e, well, _, in, _ := s.mixed(1000)
	patient := limits.OverdueAfter(16 * time.Second)
	for end := time.Now().Add(patience); f.conn.Load().Stalled() < patient+time.Second; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the kernel sees a stall of %v", f.conn.Load().Stalled())
		}
	}
	if f.suspect.Load() {
		t.Fatalf("it is suspect although nothing is asked of it:\n%s", lines.String())
	}

	s.Execute([]wire.Execute{e})
	s.checkOutput(well, in)
	s.checkFailures(1000, wire.ItemFailure{Index: 0, Reason: model.InputUnavailable, Untold: true})
	if said := lines.String()[before:]; !strings.Contains(said, "the network does not deliver") || strings.Contains(said, "overdue") {
		t.Errorf("it was found by an overdue read:\n%s", said)
	}
}

// TestAnUnreachedFrontendIsNotWaitedFor: while an attempt to connect to a frontend takes longer than a network does,
// or after one failed, its requests fail at once and are left to others. Waiting ended them at their deadlines.
func TestAnUnreachedFrontendIsNotWaitedFor(t *testing.T) {
	for name, f := range map[string]*peer{
		"the first attempt takes long": {connecting: true, began: time.Now().Add(-2 * overdueConnect)},
		"an attempt failed":            {connecting: true, began: time.Now().Add(time.Hour), refusals: 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 2})
			f.all, f.addr = &r.peers, "nobody"
			r.peers.byID[2] = f

			e, _ := r.batch(1, 2)
			for i := range e.Items {
				e.Items[i].Frontend = 2
			}
			r.Execute([]wire.Execute{e})
			r.checkUntold(e, model.InputUnavailable)
			if r.peers.doubts.Load() > 0 {
				t.Error("the batch waited until its frontend was suspect")
			}
		})
	}
}
