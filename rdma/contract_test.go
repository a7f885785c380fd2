package rdma

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestMessages(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		sizes := []int{0, 1, 24, 4096, 70 << 10, 300 << 10, 5 << 20, 10}
		var mu sync.Mutex
		var got [][]byte
		all := make(chan struct{})
		oc := c
		oc.Receive = func(from *Peer, msg []byte) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, bytes.Clone(msg))
			if len(got) == 2*len(sizes) {
				close(all)
			}
		}
		reader, owner := open(t, c), open(t, oc)
		p := connect(t, reader, owner.Addr())
		for round := range 2 {
			for i, size := range sizes {
				b := make([]byte, size)
				fill(b, i+round)
				if err := p.Send(b[:size/3], nil, b[size/3:]); err != nil {
					t.Fatal(err)
				}
				clear(b) // the parts may be reused
			}
		}
		select {
		case <-all:
		case <-time.After(20 * time.Second):
			t.Fatalf("%d of %d messages came", len(got), 2*len(sizes))
		}
		for i, msg := range got {
			want := make([]byte, sizes[i%len(sizes)])
			fill(want, i%len(sizes)+i/len(sizes))
			if !bytes.Equal(msg, want) {
				t.Fatalf("message %d: %d bytes, want %d, or content differs", i, len(msg), len(want))
			}
		}
	})
}

// TestAnswerFromReceive shows that answers go back over the peer from which a message came, and may be sent from
// Receive.
func TestAnswerFromReceive(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		oc := c
		oc.Receive = func(from *Peer, msg []byte) { from.Send(msg, []byte("!")) }
		answers := make(chan string, 100)
		rc := c
		rc.Receive = func(from *Peer, msg []byte) { answers <- string(msg) }
		reader, owner := open(t, rc), open(t, oc)
		p := connect(t, reader, owner.Addr())
		for range 100 {
			if err := p.Send([]byte("ping")); err != nil {
				t.Fatal(err)
			}
			select {
			case a := <-answers:
				if a != "ping!" {
					t.Fatalf("answer %q", a)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("no answer")
			}
		}
	})
}

// TestConcurrentUse shows that many goroutines may send and read at once, and that the messages of each stay whole
// and in order.
func TestConcurrentUse(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		const senders, each = 8, 200
		var next [senders]uint32
		var count atomic.Int32
		all := make(chan struct{})
		oc := c
		oc.Receive = func(from *Peer, msg []byte) {
			s, i := binary.LittleEndian.Uint32(msg), binary.LittleEndian.Uint32(msg[4:])
			if next[s] != i {
				t.Errorf("sender %d: message %d, want %d", s, i, next[s])
			}
			next[s] = i + 1
			if count.Add(1) == senders*each {
				close(all)
			}
		}
		reader, owner := open(t, c), open(t, oc)
		p := connect(t, reader, owner.Addr())
		src := alloc(t, owner, 20000)
		defer src.Free()
		fill(src.Bytes(), 5)
		r := src.Offer()
		var wg sync.WaitGroup
		for s := range senders {
			wg.Go(func() {
				dst := alloc(t, reader, 20000)
				defer dst.Free()
				msg := make([]byte, 8+s*3000)
				for i := range each {
					binary.LittleEndian.PutUint32(msg, uint32(s))
					binary.LittleEndian.PutUint32(msg[4:], uint32(i))
					if err := p.Send(msg); err != nil {
						t.Error(err)
					}
					if i%4 == 0 {
						clear(dst.Bytes())
						if err := wait(t, p, []Read{readOf(dst.Bytes(), r)}); err != nil || !bytes.Equal(dst.Bytes(), src.Bytes()) {
							t.Errorf("read: %v", err)
						}
					}
				}
			})
		}
		wg.Wait()
		select {
		case <-all:
		case <-time.After(20 * time.Second):
			t.Fatalf("%d of %d messages came", count.Load(), senders*each)
		}
	})
}

// TestMessagesBetweenReads shows that messages that arrive while long reads are pending do not end up in the bytes of
// the reads.
func TestMessagesBetweenReads(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		var got atomic.Int32
		rc := c
		rc.Receive = func(_ *Peer, msg []byte) {
			want := make([]byte, len(msg))
			fill(want, len(msg))
			if !bytes.Equal(msg, want) {
				t.Errorf("message of %d bytes differs", len(msg))
			}
			got.Add(1)
		}
		oc := c
		var sent atomic.Int32
		oc.Receive = func(from *Peer, msg []byte) { // several answers for every message
			for _, size := range []int{5, 30, 4000, 90 << 10} {
				b := make([]byte, size)
				fill(b, size)
				if err := from.Send(b); err == nil {
					sent.Add(1)
				}
			}
		}
		reader, owner := open(t, rc), open(t, oc)
		p := connect(t, reader, owner.Addr())
		src, dst := alloc(t, owner, 50<<10), alloc(t, reader, 100<<10)
		defer src.Free()
		defer dst.Free()
		fill(src.Bytes(), 8)
		r := src.Offer()
		chain := []Read{readOf(dst.Bytes()[:50<<10], r), readOf(dst.Bytes()[50<<10:], r)}
		for range 50 {
			clear(dst.Bytes())
			p.Send([]byte("go"))
			if err := wait(t, p, chain); err != nil || !bytes.Equal(chain[0].Dst, src.Bytes()) || !bytes.Equal(chain[1].Dst, src.Bytes()) {
				t.Fatalf("read: %v, or its bytes differ", err)
			}
		}
		for end := time.Now().Add(20 * time.Second); got.Load() < 200; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d of %d messages came", got.Load(), sent.Load())
			}
		}
	})
}

func TestConnectIsCachedAndShared(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		reader, owner := open(t, c), open(t, c)
		peers := make([]*Peer, 10)
		var wg sync.WaitGroup
		for i := range peers {
			wg.Go(func() { peers[i] = connect(t, reader, owner.Addr()) })
		}
		wg.Wait()
		for _, p := range peers {
			if p != peers[0] {
				t.Fatal("two peers for one address")
			}
		}
		peers[0].Close()
		<-peers[0].gone
		if p := connect(t, reader, owner.Addr()); p == peers[0] || p.Err() != nil {
			t.Fatal("a lost peer was returned")
		}
	})
}

// TestRestartedNodeIsAnother shows that a process that dies unnoticed and starts again at the same address is another
// node. A holder of the former address neither reaches it nor counts as its peer.
func TestRestartedNodeIsAnother(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		reader, owner, before := pair(t, c)
		addr := owner.Addr()
		if err := owner.Close(); err != nil {
			t.Fatal(err)
		}
		<-before.gone

		heard := make(chan []byte, 1)
		c.Listen, _, _ = strings.Cut(addr, "#")
		c.Receive = func(_ *Peer, msg []byte) { heard <- bytes.Clone(msg) }
		again := open(t, c)

		if p, err := reader.Connect(t.Context(), addr); err == nil {
			p.Send([]byte("for the one before"))
			t.Errorf("the address of the node before leads to another one, which hears %q", <-heard)
		} else if !errors.Is(err, ErrPeerLost) && !errors.Is(err, ErrNotSupported) {
			t.Errorf("the address of the node before: %v, want that nobody is there", err)
		}
		if all := again.Stats().Peers; len(all) > 0 {
			t.Errorf("peers of a node that nobody asked for: %+v", all)
		}
		connect(t, reader, again.Addr())
	})
}

func TestWrongToken(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		owner := open(t, c)
		c.Token = "another"
		reader := open(t, c)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if _, err := reader.Connect(ctx, owner.Addr()); !errors.Is(err, ErrAuth) {
			t.Fatalf("got %v, want ErrAuth", err)
		}
		if s := owner.Stats(); len(s.Peers) != 0 {
			t.Fatal("a peer with a wrong token was admitted")
		}
	})
}

func TestPeersMax(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		oc := c
		oc.PeersMax = 2
		owner := open(t, oc)
		for range 2 {
			connect(t, open(t, c), owner.Addr())
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if _, err := open(t, c).Connect(ctx, owner.Addr()); !errors.Is(err, ErrTooLarge) {
			t.Fatalf("got %v, want ErrTooLarge", err)
		}
	})
}

func TestStats(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		reader, owner, p := pair(t, c)
		src := alloc(t, owner, 3000)
		defer src.Free()
		r := src.Offer()
		for range 10 {
			if _, err := readInto(t, p, r); err != nil {
				t.Fatal(err)
			}
		}
		s := reader.Stats()
		if len(s.Peers) != 1 {
			t.Fatalf("%d peers", len(s.Peers))
		}
		ps := s.Peers[0]
		if ps.Chains != 10 || ps.BytesIn != 30000 || ps.Reads.Count != 10 || ps.Reads.P50 <= 0 || ps.Reads.P999 < ps.Reads.P50 {
			t.Errorf("%+v", ps)
		}
		o := owner.Stats()
		if o.BuffersLive != 1 || o.OffersLive != 1 || o.BytesLive < 3000 || o.BytesRegistered < o.BytesLive {
			t.Errorf("%+v", o)
		}
		for end := time.Now().Add(5 * time.Second); reader.Stats().Peers[0].Echo.Count == 0 && ps.Provider != "local"; {
			if time.Now().After(end) {
				t.Fatal("no echo was measured")
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}
