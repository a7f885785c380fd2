package nettest

import (
	"errors"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/rdma"
)

// Two hosts share no memory, even on one machine: the choice falls on TCP.
func TestNetReadAcrossHosts(t *testing.T) {
	h := newHost(t)
	n := reader(t)
	p := connect(t, n, h.Addr)
	if p.Provider() != "tcp" {
		t.Errorf("provider %s", p.Provider())
	}
	for range 50 {
		if err := read(t, n, p, h.Remote); err != nil {
			t.Fatal(err)
		}
	}
	p.Close()
	h.end(t)
}

// Owners are killed while many reads are under way. Every read ends; the others go on.
func TestNetPeersKilledMidRead(t *testing.T) {
	const owners, readers = 3, 4
	var all []*host
	for range owners {
		all = append(all, newHost(t))
	}
	n := reader(t)
	var ok, lost [owners]atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i, h := range all {
		p := connect(t, n, h.Addr)
		for range readers {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					switch err := read(t, n, p, h.Remote); {
					case err == nil:
						ok[i].Add(1)
					case errors.Is(err, rdma.ErrPeerLost):
						lost[i].Add(1)
						return
					default:
						t.Errorf("owner %d: %v", i, err)
						return
					}
				}
			})
		}
	}
	for i := range owners - 1 {
		time.Sleep(100 * time.Millisecond)
		all[i].cmd.Process.Kill()
	}
	time.Sleep(300 * time.Millisecond)
	before := ok[owners-1].Load()
	time.Sleep(200 * time.Millisecond)
	if ok[owners-1].Load() == before {
		t.Error("the owner that lives is not read any more")
	}
	close(stop)
	wg.Wait()
	for i := range owners - 1 {
		if lost[i].Load() != readers {
			t.Errorf("owner %d was killed: %d of %d readers were told", i, lost[i].Load(), readers)
		}
	}
	if lost[owners-1].Load() != 0 {
		t.Error("the owner that lives was reported lost")
	}
}

// Delay is seen in the percentiles that feed the scheduler.
func TestNetDelayIsMeasured(t *testing.T) {
	h := newHost(t)
	x := newProxy(t, h.Addr)
	x.delay.Store(int64(20 * time.Millisecond))
	n := reader(t)
	p := connect(t, n, x.ln.Addr().String())
	for range 10 {
		if err := read(t, n, p, h.Remote); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(5 * time.Second); n.Stats().Peers[0].Echo.Count < 2 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	s := n.Stats().Peers[0]
	if s.Reads.P50 < 40*time.Millisecond || s.Echo.P50 < 40*time.Millisecond || s.Echo.P50 > time.Second {
		t.Errorf("40 ms there and back: %+v", s)
	}
	p.Close()
	h.end(t)
}

// Lost segments, as TCP shows them: late by a retransmission. Nothing is lost.
func TestNetLoss(t *testing.T) {
	h := newHost(t)
	x := newProxy(t, h.Addr)
	x.loss.Store(50)
	n := reader(t)
	p := connect(t, n, x.ln.Addr().String())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				if err := read(t, n, p, h.Remote); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	p.Close()
	h.end(t)
}

// A partition, by a hole in the way and by a link that is down: reads end as lost within a few
// Stalls, and once it heals a new connection works.
func TestNetPartition(t *testing.T) {
	for _, how := range []string{"hole", "link"} {
		t.Run(how, func(t *testing.T) {
			h := newHost(t)
			n := reader(t)
			addr, cut, heal := h.Addr, func() { ip(t, "link", "set", h.link, "down") }, func() { ip(t, "link", "set", h.link, "up") }
			if how == "hole" {
				x := newProxy(t, h.Addr)
				addr, cut, heal = x.ln.Addr().String(), func() { x.hole.Store(true) }, func() { x.hole.Store(false) }
			}
			p := connect(t, n, addr)
			if err := read(t, n, p, h.Remote); err != nil {
				t.Fatal(err)
			}
			cut()
			began := time.Now()
			if err := read(t, n, p, h.Remote); !errors.Is(err, rdma.ErrPeerLost) {
				t.Errorf("a read into a partition ended with %v", err)
			}
			if d := time.Since(began); d > 4*stall {
				t.Errorf("it took %v", d)
			}
			heal()
			var err error
			for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				if err = read(t, n, connect(t, n, addr), h.Remote); err == nil {
					break
				}
			}
			if err != nil {
				t.Errorf("not healed: %v", err)
			}
		})
	}
}

// An owner that is stopped (not dead) must not hold up its readers.
func TestNetOwnerThatIsStopped(t *testing.T) {
	h := newHost(t)
	n := reader(t)
	p := connect(t, n, h.Addr)
	if err := read(t, n, p, h.Remote); err != nil {
		t.Fatal(err)
	}
	exec.Command("kill", "-STOP", strconv.Itoa(h.cmd.Process.Pid)).Run()
	defer exec.Command("kill", "-CONT", strconv.Itoa(h.cmd.Process.Pid)).Run()
	if err := read(t, n, p, h.Remote); !errors.Is(err, rdma.ErrPeerLost) {
		t.Errorf("read ended with %v", err)
	}
}
