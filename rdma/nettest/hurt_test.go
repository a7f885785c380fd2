package nettest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"downbeat.dev/rdma"
)

// TestNetReadAcrossHosts shows that two hosts share no memory, even on one machine: the provider follows the network
// between them.
func TestNetReadAcrossHosts(t *testing.T) {
	p := newPlace(t)
	h := p.newHost(t, p.stall)
	reads := p.countReads(t)
	m := p.newReader(t, p.stall)
	peer := m.connect(t, h.Addr)
	if peer.Provider() != p.provider {
		t.Errorf("provider %s", peer.Provider())
	}
	for range 50 {
		if err := m.read(t, peer, h.Remote); err != nil {
			t.Fatal(err)
		}
	}
	m.echo(t, peer, 50, 50)
	if peer.Provider() != p.provider {
		t.Errorf("provider %s at the end", peer.Provider())
	}
	reads.check(t, 25) // the first ones request the segment in the meantime
	peer.Close()
	h.end(t)
}

// TestNetPeersKilledMidRead: owners are killed during many reads. Every read ends, and the others continue.
func TestNetPeersKilledMidRead(t *testing.T) {
	const owners, readers = 3, 4
	p := newPlace(t)
	m := p.newReader(t, p.stall)
	var all [owners]*host
	for i := range all {
		if all[i] = p.newHost(t, p.stall); p.kind == "namespaces" && i+1 < owners {
			p = newPlace(t)
		}
	}
	var ok, lost [owners]atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i, h := range all {
		peer := m.connect(t, h.Addr)
		for range readers {
			wg.Go(func() { readUntil(t, m, peer, h.Remote, stop, &ok[i], &lost[i]) })
		}
	}
	more := func(i int) {
		t.Helper()
		for before, end := ok[i].Load(), time.Now().Add(p.patience); ok[i].Load() < before+readers; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("owner %d lives and is not read any more", i)
				return
			}
		}
	}
	for i := range owners - 1 {
		more(i)
		all[i].owner.kill()
	}
	more(owners - 1)
	for i := range owners - 1 {
		for end := time.Now().Add(p.patience); lost[i].Load() < readers && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if lost[i].Load() != readers {
			t.Errorf("owner %d was killed: %d of %d readers were told", i, lost[i].Load(), readers)
		}
	}
	more(owners - 1)
	close(stop)
	wg.Wait()
	if lost[owners-1].Load() != 0 {
		t.Error("the owner that lives was reported lost")
	}
}

// readUntil reads until stop or until the peer is lost, and counts.
func readUntil(t *testing.T, m *mirror, peer *rdma.Peer, r rdma.Remote, stop chan struct{}, ok, lost *atomic.Int64) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		switch err := m.read(t, peer, r); {
		case err == nil:
			ok.Add(1)
		case errors.Is(err, rdma.ErrPeerLost):
			lost.Add(1)
			return
		default:
			t.Error(err)
			return
		}
	}
}

// TestNetDelayIsMeasured shows that a delay appears in the percentiles that the scheduler uses.
func TestNetDelayIsMeasured(t *testing.T) {
	p := newRoughPlace(t)
	h := p.newHost(t, p.stall)
	m := p.newReader(t, p.stall)
	peer := m.connect(t, h.Addr)
	p.hurt(t, harm{delay: 20 * time.Millisecond})
	for range 10 {
		if err := m.read(t, peer, h.Remote); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(p.patience); m.Stats().Peers[0].Echo.P999 < 40*time.Millisecond && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if s := m.Stats().Peers[0]; s.Reads.P50 < 40*time.Millisecond || s.Echo.P999 < 40*time.Millisecond {
		t.Errorf("40 ms there and back: %+v", s)
	}
	peer.Close()
	h.end(t)
}

// TestNetBadNetworks shows that the harm of a bad network changes no byte and no order, and loses nothing.
func TestNetBadNetworks(t *testing.T) {
	for _, c := range []struct {
		name string
		harm harm
	}{
		{"jitter", harm{delay: 10 * time.Millisecond, jitter: 5 * time.Millisecond}},
		{"loss 1", harm{loss: 1}},
		{"loss 5", harm{loss: 5}},
		{"reorder 25", harm{reorder: 25}},
		{"duplicate 5", harm{duplicate: 5}},
		{"all", harm{delay: 2 * time.Millisecond, jitter: time.Millisecond, loss: 1, reorder: 5, duplicate: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newRoughPlace(t)
			h := p.newHost(t, p.stall)
			m := p.newReader(t, p.stall)
			peer := m.connect(t, h.Addr)
			p.hurt(t, c.harm)
			// Soft-RoCE starts again from the first packet out of order, so a queue of messages hardly moves (nor
			// does perftest's), and the test demands little of it.
			readers, reads, messages, window := 4, 8, 30, 30
			if p.provider == "verbs" {
				readers, reads, messages, window = 2, 3, 8, 1
			}
			var wg sync.WaitGroup
			for range readers {
				wg.Go(func() {
					for range reads {
						if err := m.read(t, peer, h.Remote); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			m.echo(t, peer, messages, window)
			if p.tun != nil {
				p.tun.check(t, c.harm)
			}
			p.heal(t)
			t.Logf("at the end over %s: %+v", peer.Provider(), m.Stats().Peers)
			peer.Close()
			h.end(t)
		})
	}
}

// check fails unless the harm was done.
func (x *tunnel) check(t *testing.T, h harm) {
	t.Helper()
	t.Logf("%d packets: %d lost, %d doubled, %d overtaken", x.seen.Load(), x.lost.Load(), x.doubled.Load(), x.overtaken.Load())
	if h.loss > 0 && x.lost.Load() == 0 || h.duplicate > 0 && x.doubled.Load() == 0 || (h.reorder > 0 || h.jitter > 0) && x.overtaken.Load() == 0 {
		t.Errorf("no harm was done: %+v", h)
	}
}

// TestNetPartition: with packets dropped on the way, and with a link down, reads end as lost within a few Stalls.
// After the partition a new connection works.
func TestNetPartition(t *testing.T) {
	for _, how := range []string{"hole", "link"} {
		t.Run(how, func(t *testing.T) {
			p := newRoughPlace(t)
			cut, heal := func() { p.cut(t) }, func() { p.heal(t) }
			if how == "link" {
				if p.kind != "namespaces" {
					t.Skip("the link carries the addresses' routes and the agent")
				}
				cut, heal = func() { ip(t, "link", "set", p.link, "down") }, func() { ip(t, "link", "set", p.link, "up") }
			}
			h := p.newHost(t, p.short)
			m := p.newReader(t, p.short)
			peer := m.again(t, h)
			cut()
			began := time.Now()
			err := m.read(t, peer, h.Remote)
			if !errors.Is(err, rdma.ErrPeerLost) {
				t.Errorf("a read into a partition ended with %v", err)
			}
			if d := time.Since(began); d > p.patience/2 {
				t.Errorf("it took %v", d)
			}
			heal()
			peer = m.again(t, h)
			peer.Close()
			h.end(t)
		})
	}
}

// again connects until a read succeeds: a peer may still be disconnected, or slow.
func (m *mirror) again(t *testing.T, h *host) *rdma.Peer {
	t.Helper()
	var err error
	for end := time.Now().Add(m.patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var peer *rdma.Peer
		if peer, err = m.reach(h.Addr); err != nil {
			continue
		}
		if err = m.read(t, peer, h.Remote); err == nil {
			return peer
		}
	}
	t.Fatalf("no read succeeds: %v", err)
	return nil
}

// TestNetOwnerThatIsStopped shows that an owner that is stopped, not dead, does not delay its readers: every read
// ends, and soon as lost. Until the echo notices, its network card may still serve one-sided reads. Other peers are
// not affected.
func TestNetOwnerThatIsStopped(t *testing.T) {
	p := newPlace(t)
	h, good := p.newHost(t, p.short), p.newHost(t, p.short)
	m := p.newReader(t, p.short)
	peer := m.again(t, h)
	h.owner.signal(syscall.SIGSTOP)
	var err error
	for end := time.Now().Add(p.patience); err == nil; {
		if err = m.read(t, peer, h.Remote); time.Now().After(end) {
			t.Fatal("an owner that is stopped is not cut off")
		}
	}
	if !errors.Is(err, rdma.ErrPeerLost) {
		t.Errorf("a read ended with %v", err)
	}
	m.again(t, good)
	h.owner.signal(syscall.SIGCONT)
	m.again(t, h).Close()
	h.end(t)
}

// TestNetReaderThatIsStopped shows that a reader that is stopped in the middle of its reads holds nothing for long:
// it is disconnected, the buffer that it was reading can be withdrawn, and other readers are not affected.
func TestNetReaderThatIsStopped(t *testing.T) {
	p := newPlace(t)
	m := p.newReader(t, p.short) // here this node is the owner
	b, err := m.Alloc(bytesPer)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b.Bytes() {
		b.Bytes()[i] = pattern(i)
	}
	text, _ := json.Marshal(reading{told{Addr: m.Addr(), Remote: b.Offer()}, p.ip, p.provider, p.short})
	bad, good := p.start(t, []string{readerEnv + "=" + string(text)}, ""), p.start(t, []string{readerEnv + "=" + string(text)}, "")
	good.line(t, "read")
	bad.line(t, "read")
	bad.signal(syscall.SIGSTOP)
	for end := time.Now().Add(p.patience); len(m.Stats().Peers) > 1; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("a reader that is stopped is not cut off: %+v", m.Stats().Peers)
		}
	}
	good.skip()
	good.line(t, "read")
	withdrawn := make(chan struct{})
	go func() { b.Withdraw(); close(withdrawn) }()
	select {
	case <-withdrawn:
	case <-time.After(p.patience):
		t.Fatal("Withdraw waits for a reader that is stopped")
	}
	b.Free()
	good.line(t, "not offered")
	bad.signal(syscall.SIGCONT)
	for _, c := range []*child{good, bad} {
		if code := c.code(t, p.patience); code != 0 {
			t.Errorf("a reader's exit code is %d:\n%s", code, c.text())
		}
	}
}

// readerEnv makes this process a reader.
const readerEnv = "DOWNBEAT_NETTEST_READER"

type reading struct {
	told
	IP, Provider string
	Stall        time.Duration
}

// beReader reads until the buffer is no longer offered, and reports each read.
func beReader(text string) error {
	var r reading
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return err
	}
	n, err := rdma.Open(config(r.IP, r.Provider, r.Stall))
	if err != nil {
		return err
	}
	b, err := n.Alloc(bytesPer)
	if err != nil {
		return err
	}
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
		peer, err := n.Connect(context.Background(), r.Addr)
		if err != nil {
			fmt.Println(err)
			continue
		}
		done := make(chan error, 1)
		peer.Read([]rdma.Read{{Dst: b.Bytes(), Src: r.Remote}}, func(err error) { done <- err })
		switch err := <-done; {
		case err == nil:
			fmt.Println("read")
		case errors.Is(err, rdma.ErrNotOffered):
			fmt.Println("not offered")
			b.Free()
			return n.Close()
		case !errors.Is(err, rdma.ErrPeerLost):
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
	return errors.New("it is offered for ever")
}

// TestNetPinnedProviderThatIsNotThere shows that a missing provider is an error that says so.
func TestNetPinnedProviderThatIsNotThere(t *testing.T) {
	p := newPlace(t)
	c := config("127.0.0.1", "verbs", p.stall) // loopback never has a device
	if n, err := rdma.Open(c); !errors.Is(err, rdma.ErrNotSupported) || !strings.Contains(err.Error(), "rdma") {
		t.Errorf("got %v, %v", n, err)
	}
}
