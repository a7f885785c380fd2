package nettest

import (
	"container/heap"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/bench/chaos/lan"
)

// harm is what a bad network does to packets in each direction.
type harm struct {
	delay, jitter            time.Duration // each packet: delay ± jitter, drawn separately
	loss, duplicate, reorder float64       // percent of packets; later packets overtake the reordered ones
}

// hurt disturbs the network to the place from now on, with netem if the kernel has it, otherwise with the tunnel.
func (p *place) hurt(t testing.TB, h harm) {
	t.Helper()
	if p.tun != nil {
		p.tun.harm.Store(&h)
		return
	}
	if p.kind == "namespaces" {
		t.Fatal("this way cannot be harmed: newRoughPlace makes one that can")
	}
	args := []string{"root", "netem", "limit", "100000"}
	if h.reorder > 0 { // netem sends these at once, so the others must be late
		h.delay = max(h.delay, 2*time.Millisecond)
	}
	if h.delay > 0 {
		args = append(args, "delay", us(h.delay), us(h.jitter))
	}
	for _, v := range []struct {
		name string
		of   float64
	}{{"loss", h.loss}, {"duplicate", h.duplicate}, {"reorder", h.reorder}} {
		if v.of > 0 {
			args = append(args, v.name, strconv.FormatFloat(v.of, 'f', -1, 64)+"%")
		}
	}
	p.do(t, append([]string{"tc", "qdisc", "replace", "dev", p.peer}, args...)...)
	(*place)(nil).do(t, append([]string{"tc", "qdisc", "replace", "dev", p.link}, args...)...)
	t.Cleanup(func() { p.heal(t) })
}

func us(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) + "us" }

// cut drops all packets and closes nothing.
func (p *place) cut(t testing.TB) {
	t.Helper()
	if p.tun != nil {
		p.tun.hole.Store(true)
		return
	}
	(*place)(nil).do(t, "tc", "qdisc", "replace", "dev", p.link, "root", "netem", "loss", "100%")
	t.Cleanup(func() { p.heal(t) })
}

// heal ends all harm.
func (p *place) heal(t testing.TB) {
	t.Helper()
	if p.tun != nil {
		p.tun.harm.Store(&harm{})
		p.tun.hole.Store(false)
		return
	}
	(*place)(nil).command(nil, "tc", "qdisc", "del", "dev", p.link, "root").Run() // here first: it is the way to the agent
	p.command(nil, "tc", "qdisc", "del", "dev", p.peer, "root").Run()
}

// tunnel is the cable between us and a namespace: two TUN devices, and a forwarder that harms packets with a random
// generator, whose seed the test prints (DOWNBEAT_SEED sets it). The kernel of the host need not have netem.
type tunnel struct {
	harm                           atomic.Pointer[harm]
	hole                           atomic.Bool
	seen, lost, doubled, overtaken atomic.Int64
	wait                           sync.WaitGroup
	end                            chan struct{}
	here, there                    *os.File
}

func newTunnel(t testing.TB, p *place) *tunnel {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("DOWNBEAT_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("DOWNBEAT_SEED: %v", err)
		}
	}
	t.Logf("seed %d (DOWNBEAT_SEED)", seed)
	x := &tunnel{end: make(chan struct{})}
	x.harm.Store(&harm{})
	var err error
	if x.here, err = lan.OpenTUN(p.link); err == nil {
		x.there, err = lan.OpenTUN(p.link + "x")
	}
	if err != nil {
		t.Skipf("test-net: skipped: no TUN devices here: %v", err)
	}
	ip(t, "link", "set", p.link+"x", "netns", p.ns, "name", p.peer)
	x.wait.Add(2)
	go x.forward(x.here, x.there, rand.New(rand.NewPCG(seed, 1)))
	go x.forward(x.there, x.here, rand.New(rand.NewPCG(seed, 2)))
	t.Cleanup(func() {
		close(x.end)
		x.here.Close()
		x.there.Close()
		x.wait.Wait()
	})
	return x
}

type packet struct {
	due time.Time
	at  int64 // position in the order of arrival
	b   []byte
}

// packets is a heap with the first due packet on top.
type packets []packet

func (q packets) Len() int { return len(q) }
func (q packets) Less(i, j int) bool {
	return q[i].due.Before(q[j].due) || q[i].due.Equal(q[j].due) && q[i].at < q[j].at
}
func (q packets) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *packets) Push(x any)   { *q = append(*q, x.(packet)) }
func (q *packets) Pop() any {
	old := *q
	p := old[len(old)-1]
	*q = old[:len(old)-1]
	return p
}

// overtakenBy is the time for which a reordered packet is held back, so that others pass it.
const overtakenBy = 3 * time.Millisecond

// forward reads packets and decides about each one with rng; deliver writes them when they are due.
func (x *tunnel) forward(from, to *os.File, rng *rand.Rand) {
	defer x.wait.Done()
	queue := make(chan packet, 4096)
	x.wait.Add(1)
	go x.deliver(to, queue)
	defer close(queue)
	buf := make([]byte, 64<<10)
	for at := int64(1); ; at++ {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		x.seen.Add(1)
		h, now := *x.harm.Load(), time.Now()
		chance := func(percent float64) bool { return rng.Float64()*100 < percent }
		if chance(h.loss) || x.hole.Load() {
			x.lost.Add(1)
			continue
		}
		copies := 1
		if chance(h.duplicate) {
			x.doubled.Add(1)
			copies = 2
		}
		for range copies {
			wait := h.delay + time.Duration((2*rng.Float64()-1)*float64(h.jitter))
			if chance(h.reorder) {
				wait += overtakenBy
			}
			select {
			case queue <- packet{now.Add(wait), at, append([]byte(nil), buf[:n]...)}:
			case <-x.end:
				return
			}
		}
	}
}

func (x *tunnel) deliver(to *os.File, queue <-chan packet) {
	defer x.wait.Done()
	var waiting packets
	var last int64
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		for len(waiting) > 0 && !time.Now().Before(waiting[0].due) {
			p := heap.Pop(&waiting).(packet)
			if p.at < last {
				x.overtaken.Add(1)
			}
			last = max(last, p.at)
			if !x.hole.Load() {
				to.Write(p.b) // a device that is down accepts nothing, which is a loss
			}
		}
		if len(waiting) > 0 {
			timer.Reset(time.Until(waiting[0].due))
		} else {
			timer.Reset(time.Hour)
		}
		select {
		case p, open := <-queue:
			if !open {
				return
			}
			heap.Push(&waiting, p)
		case <-timer.C:
		}
	}
}
