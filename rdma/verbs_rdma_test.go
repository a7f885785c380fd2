//go:build rdma && linux && cgo

package rdma

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/rdma/stream"
)

// addVerbs adds the contract's verbs provider if DOWNBEAT_RDMA_ADDR names an address of a network interface with an
// RDMA device ("make test-rdma" sets it, in a virtual machine with soft-RoCE).
func addVerbs(cs map[string]Config) {
	if os.Getenv("DOWNBEAT_RDMA_ADDR") != "" {
		cs["verbs"] = verbsConfig()
	}
}

func verbsConfig() Config {
	// Emulated processors on a busy host pause for seconds.
	return Config{Providers: []string{"verbs"}, Listen: os.Getenv("DOWNBEAT_RDMA_ADDR") + ":0", Token: "a token", Stall: 15 * time.Second}
}

// verbsPeer returns a connected pair of nodes with an offered buffer whose segment is already granted.
func verbsPeer(t *testing.T, c Config) (p *Peer, src *Buffer, r Remote) {
	t.Helper()
	if os.Getenv("DOWNBEAT_RDMA_ADDR") == "" {
		if os.Getenv("DOWNBEAT_REQUIRE_RDMA") != "" {
			t.Fatal("DOWNBEAT_REQUIRE_RDMA is set and DOWNBEAT_RDMA_ADDR is not")
		}
		t.Skip("DOWNBEAT_RDMA_ADDR names no address of an RDMA device; make test-rdma has one")
	}
	_, owner, p := pair(t, c)
	src = alloc(t, owner, 150<<10)
	t.Cleanup(src.Free)
	fill(src.Bytes(), 9)
	r = src.Offer()
	granted(t, p, r)
	return p, src, r
}

// pairOf returns the peer's queue pair, if reads use one.
func pairOf(p *Peer) (*verbsPair, bool) {
	q, ok := (*connOf(p).direct.Load()).(*verbsPair)
	return q, ok
}

// granted reads until the peer's segment is known, so that the next read uses the queue pair.
func granted(t *testing.T, p *Peer, r Remote) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := readInto(t, p, r); err != nil {
			t.Fatal(err)
		}
		if q, ok := pairOf(p); ok {
			q.mu.Lock()
			known := q.knows(r.Segment())
			q.mu.Unlock()
			if known {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatal("the segment was never granted")
		}
	}
}

// awaitProvider waits until the peer's reads use the named provider.
func awaitProvider(t *testing.T, p *Peer, want string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); p.Provider() != want; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("provider %s, want %s", p.Provider(), want)
		}
	}
}

// TestVerbsQueuePairBreaksUnderLoad shows that no read is lost when queue pairs break under load, at either end, and
// that verbs return.
func TestVerbsQueuePairBreaksUnderLoad(t *testing.T) {
	for _, end := range []string{"reader", "owner"} {
		t.Run(end, func(t *testing.T) {
			p, src, r := verbsPeer(t, verbsConfig())
			const n = 60
			all := make(chan error, n)
			dst := make([]*Buffer, n)
			for i := range n {
				dst[i] = alloc(t, p.node, len(src.Bytes()))
			}
			var posted atomic.Int32
			go func() { // soft-RoCE performs much of a read within the post
				for i := range n {
					p.Read([]Read{readOf(dst[i].Bytes(), r)}, func(err error) { all <- err })
					posted.Add(1)
				}
			}()
			for posted.Load() < n/4 {
				time.Sleep(100 * time.Microsecond)
			}
			victim := p
			if end == "owner" {
				victim = onlyPeer(t, r)
			}
			q, ok := pairOf(victim)
			if !ok {
				t.Fatal("no queue pair to break")
			}
			if err := q.breakPair(); err != nil {
				t.Fatal(err)
			}
			for i := range n {
				select {
				case err := <-all:
					if err != nil {
						t.Errorf("a read was lost: %v", err)
					}
				case <-time.After(30 * time.Second):
					t.Fatalf("%d of %d reads ended", i, n)
				}
			}
			for i := range dst {
				if !bytes.Equal(dst[i].Bytes(), src.Bytes()) {
					t.Fatalf("read %d differs", i)
				}
				dst[i].Free()
			}
			// The last read may have ended before the break: the next read finds the broken pair.
			for end := time.Now().Add(20 * time.Second); connOf(p).upgrade.again.Load() == 0; time.Sleep(time.Millisecond) {
				if _, err := readInto(t, p, r); err != nil {
					t.Fatal(err)
				}
				if time.Now().After(end) {
					t.Fatal("the connector did not notice")
				}
			}
			awaitProvider(t, p, "verbs")
			granted(t, p, r)
		})
	}
}

// onlyPeer returns the single peer of the node that owns an offered buffer.
func onlyPeer(t *testing.T, r Remote) *Peer {
	t.Helper()
	nodes.Lock()
	defer nodes.Unlock()
	for _, n := range nodes.byID {
		if pin, ok := n.pool.Find(r); ok {
			pin.Release()
			return peerOf(t, n)
		}
	}
	t.Fatal("no such node")
	return nil
}

// peerOf returns the single peer of a node.
func peerOf(t *testing.T, n *Node) *Peer {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	for p := range n.peers {
		return p
	}
	t.Fatal("the node has no peer")
	return nil
}

// TestVerbsMessagesSurviveABreak shows that each message arrives once and in order, whichever path it took.
func TestVerbsMessagesSurviveABreak(t *testing.T) {
	for _, end := range []string{"sender", "receiver"} {
		t.Run(end, func(t *testing.T) {
			const n = 300
			var next atomic.Uint32
			oc := verbsConfig()
			oc.Receive = func(_ *Peer, msg []byte) {
				i := binary.LittleEndian.Uint32(msg)
				if !next.CompareAndSwap(i, i+1) || len(msg) != messageSize(int(i)) {
					t.Errorf("message %d of %d bytes, expected %d", i, len(msg), next.Load())
				}
			}
			p, src, r := verbsPeer(t, verbsConfig())
			_, _ = src, r
			owner := open(t, oc)
			p = connect(t, p.node, owner.Addr())
			awaitProvider(t, p, "verbs")
			for i := range n {
				msg := make([]byte, messageSize(i))
				binary.LittleEndian.PutUint32(msg, uint32(i))
				if err := p.Send(msg); err != nil {
					t.Fatal(err)
				}
				if i == n/2 {
					victim := p
					if end == "receiver" {
						victim = peerOf(t, owner)
					}
					if q, ok := pairOf(victim); ok {
						if err := q.breakPair(); err != nil {
							t.Error(err)
						}
					}
				}
			}
			for end := time.Now().Add(20 * time.Second); next.Load() < n; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					rc := connOf(peerOf(t, owner))
					var sends int
					if q, ok := pairOf(p); ok {
						sends = len(q.sends)
					}
					t.Fatalf("%d of %d messages came; here next %d, held %d, fetches %d, over %s; there number %d, staged %d, sends %d, queued %d, over %s, err %v", next.Load(), n,
						rc.inbox.next, len(rc.inbox.held), len(rc.inbox.fetches), rc.peer.Provider(), connOf(p).outbox.number, len(connOf(p).outbox.staged), sends, connOf(p).out.frames.Bytes(), p.Provider(), p.Err())
				}
			}
		})
	}
}

func messageSize(i int) int { return 4 + i%7*100 + i%20/19*40<<10 }

// TestVerbsKeyOfAnotherPeer shows that a remote key is worthless to another peer if the device has memory windows:
// its use breaks the user's own queue pair, and the read then ends over TCP.
func TestVerbsKeyOfAnotherPeer(t *testing.T) {
	p, src, r := verbsPeer(t, verbsConfig())
	other := connect(t, open(t, verbsConfig()), onlyPeer(t, r).node.Addr())
	granted(t, other, r)
	mine, _ := pairOf(p)
	theirs, _ := pairOf(other)
	if mine.dev.info.windows == 0 {
		t.Skip("the device has no type 2 memory windows")
	}
	at := r.Segment()
	theirs.mu.Lock()
	g := theirs.segs[at]
	same := g.Rkey == mine.segs[at].Rkey
	g.Rkey = mine.segs[at].Rkey
	theirs.segs[at] = g
	theirs.mu.Unlock()
	if same {
		t.Fatal("two peers were given the same key")
	}
	got, err := readInto(t, other, r)
	if err != nil || !bytes.Equal(got, src.Bytes()) {
		t.Fatalf("the read did not end well over TCP: %v", err)
	}
	awaitProvider(t, other, "tcp")
	if got, err := readInto(t, p, r); err != nil || !bytes.Equal(got, src.Bytes()) || p.Provider() != "verbs" {
		t.Fatalf("the rightful peer was harmed: %v over %s", err, p.Provider())
	}
}

func TestVerbsDstThatIsNotRegistered(t *testing.T) {
	p, src, r := verbsPeer(t, verbsConfig())
	dst := make([]byte, len(src.Bytes()))
	if err := wait(t, p, []Read{readOf(dst, r)}); err != nil || !bytes.Equal(dst, src.Bytes()) {
		t.Fatal(err)
	}
	if p.Provider() != "verbs" {
		t.Error("it cost the queue pair")
	}
}

// TestVerbsNotThere: for an interface without a device, and for a peer without verbs, there is a clear reason, and
// TCP if it is allowed.
func TestVerbsNotThere(t *testing.T) {
	p, _, _ := verbsPeer(t, verbsConfig())
	if _, err := Open(Config{Providers: []string{"verbs"}}); !errors.Is(err, ErrNotSupported) || !strings.Contains(err.Error(), "lo") {
		t.Errorf("loopback has no device: %v", err)
	}
	plain := open(t, Config{Providers: []string{"tcp"}, Token: "a token", Listen: os.Getenv("DOWNBEAT_RDMA_ADDR") + ":0"})
	if _, err := p.node.Connect(context.Background(), plain.Addr()); !errors.Is(err, ErrNotSupported) {
		t.Errorf("verbs pinned, the peer has none: %v", err)
	}
	c := verbsConfig()
	c.Providers = []string{"verbs", "tcp"}
	if q := connect(t, open(t, c), plain.Addr()); q.Provider() != "tcp" {
		t.Errorf("provider %s", q.Provider())
	}
}

// TestVerbsGIDThatDoesNotRoute: if the GID of a peer leads nowhere, reads use TCP after the queue pair's retries.
func TestVerbsGIDThatDoesNotRoute(t *testing.T) {
	p, src, r := verbsPeer(t, verbsConfig())
	q, _ := pairOf(p)
	fresh, err := q.dev.newPair(connOf(p))
	if err != nil {
		t.Fatal(err)
	}
	end := stream.PairEnd{QPN: 0x1234, PSN: 1, MTU: 3, ReadsIn: 1, ReadsOut: 1}
	copy(end.GID[10:], []byte{0xff, 0xff, 10, 77, 9, 9})
	q.mu.Lock()
	fresh.segs = q.segs
	q.mu.Unlock()
	if err := fresh.connect(end); err != nil { // the kernel may refuse it at once
		fresh.closeDirect(err)
		t.Logf("refused: %v", err)
		return
	}
	dst := alloc(t, p.node, len(src.Bytes()))
	defer dst.Free()
	ch := make(chan error, 1)
	if !fresh.readDirect(stream.Request{Reads: []Read{readOf(dst.Bytes(), r)}, Done: func(err error) { ch <- err }}) {
		t.Fatal("not posted")
	}
	select {
	case err := <-ch:
		if err != nil || !bytes.Equal(dst.Bytes(), src.Bytes()) {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the read never ended")
	}
}

// TestVerbsSlowReadsAreProvenAgain shows that a chain that took long is verified by its entries, which are read once
// more.
func TestVerbsSlowReadsAreProvenAgain(t *testing.T) {
	reader, owner := open(t, verbsConfig()), open(t, verbsConfig())
	reader.verbs.(*verbsDevice).proof = 0
	p := connect(t, reader, owner.Addr())
	src, gone := alloc(t, owner, 50<<10), alloc(t, owner, 50<<10)
	defer src.Free()
	fill(src.Bytes(), 4)
	r, s := src.Offer(), gone.Offer()
	granted(t, p, r)
	dst := alloc(t, reader, 150<<10)
	defer dst.Free()
	b := dst.Bytes()
	chain := []Read{readOf(b[:50<<10], r), readOf(b[50<<10:100<<10], s), readOf(b[100<<10:140<<10], remoteOf(r.Key, 10<<10, 40<<10))}
	if err := wait(t, p, chain); err != nil {
		t.Fatal(err)
	}
	gone.Free()
	err := wait(t, p, chain)
	var ce *ChainError
	if !errors.As(err, &ce) || len(ce.Failed) != 1 || ce.Failed[0] != 1 {
		t.Fatalf("got %v", err)
	}
	if !bytes.Equal(chain[0].Dst, src.Bytes()) || !bytes.Equal(chain[2].Dst, src.Bytes()[10<<10:]) {
		t.Error("bytes differ")
	}
	q, ok := pairOf(p)
	if !ok || q.rechecks != 2 && q.rechecks != 3 {
		t.Errorf("%d chains were proven again over %s", q.rechecks, p.Provider())
	}
}
