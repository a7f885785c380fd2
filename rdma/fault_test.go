package rdma

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"downbeat.dev/rdma/memory"

	"downbeat.dev/rdma/stream"
)

// raw opens a byte stream to a node, after the handshake, as a peer that holds the token would.
func raw(t testing.TB, n *Node) net.Conn {
	t.Helper()
	hostport, _, _ := strings.Cut(n.Addr(), "#")
	s, err := greetAgain(t, func() (net.Conn, error) { return net.Dial("tcp", hostport) }, stream.NodeID{1}, n.cfg.Token)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// greetAgain connects and shakes hands. It repeats this if the node has closed the connection, which on a busy host
// may not have received a first byte in time.
func greetAgain(t testing.TB, dial func() (net.Conn, error), as stream.NodeID, token string) (net.Conn, error) {
	t.Helper()
	for end := time.Now().Add(patient); ; {
		s, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		s.SetDeadline(time.Now().Add(time.Minute))
		if _, err = stream.Greet(s, as, nil, token); err == nil {
			t.Cleanup(func() { s.Close() })
			return s, nil
		}
		s.Close()
		if !wasCut(err) || time.Now().After(end) {
			return nil, err
		}
	}
}

// cutOff waits until the node has closed the stream.
func cutOff(t testing.TB, s net.Conn) {
	t.Helper()
	s.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.Copy(io.Discard, s); err != nil && errors.Is(err, context.DeadlineExceeded) {
		t.Fatal("the peer was not cut off")
	} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Fatal("the peer was not cut off")
	}
}

// tcpNode returns a node with an offered buffer, and a check that a good peer still works.
func tcpNode(t testing.TB, c Config) (n *Node, good func()) {
	c.Token, c.Providers = "a token", []string{"tcp"}
	if c.Stall == 0 {
		c.Stall = patient
	}
	n = open(t, c)
	b := alloc(t, n, 8<<10)
	fill(b.Bytes(), 3)
	r := b.Offer()
	p := connect(t, open(t, Config{Token: c.Token, Providers: c.Providers, Stall: patient}), n.Addr())
	t.Cleanup(b.Free)
	return n, func() {
		t.Helper()
		got, err := readInto(t, p, r)
		if err != nil || !bytes.Equal(got, b.Bytes()) {
			t.Errorf("a good peer was harmed: %v", err)
		}
	}
}

func TestPeerThatBreaksTheProtocolIsCut(t *testing.T) {
	n, good := tcpNode(t, Config{})
	bad := map[string][]byte{
		"no such kind":     {0, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"flags":            {0, 0, 0, 0, byte(stream.KindEcho), 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"message too long": stream.Frame{Body: MessageMax + 1, Kind: stream.KindMessage}.Append(nil),
		"chain too long":   stream.Frame{Body: (ChainMax + 1) * stream.RemoteBytes, Kind: stream.KindRead, Count: ChainMax + 1}.Append(nil),
		"count lies":       stream.Frame{Body: stream.RemoteBytes, Kind: stream.KindRead, Count: 2}.Append(nil),
		"data unasked":     append(stream.Frame{Body: 1, Kind: stream.KindData, Count: 1, ID: 1}.Append(nil), 0),
		"echo unasked":     stream.Frame{Kind: stream.KindEchoed, ID: 77}.Append(nil),
		"grant unasked":    stream.Granted{Layout: memory.Layout{Index: 1, Stride: memory.HeadBytes + 1024, Slots: 1}}.Append(nil, 5),
		"chain of too many bytes": stream.AppendRemote(stream.AppendRemote(stream.Frame{Body: 2 * stream.RemoteBytes, Kind: stream.KindRead, Count: 2}.Append(nil),
			remoteOf(1, 0, 1<<31)), remoteOf(1, 0, 1<<31)),
		"verbs from the wrong end": stream.Setup{Op: stream.SetupAccept}.Append(nil),
	}
	for name, b := range bad {
		t.Run(name, func(t *testing.T) {
			s := raw(t, n)
			s.Write(b)
			cutOff(t, s)
			good()
		})
	}
}

// TestPeerThatLiesAboutSizes shows that a peer that answers a read with other sizes than requested is disconnected,
// and that the read ends.
func TestPeerThatLiesAboutSizes(t *testing.T) {
	for name, answer := range map[string]func(f stream.Frame) []byte{
		"more bytes": func(f stream.Frame) []byte {
			return append(stream.Frame{Body: 1 + 5000, Kind: stream.KindData, Count: 1, ID: f.ID}.Append(nil), stream.StatusOK)
		},
		"fewer bytes": func(f stream.Frame) []byte {
			return append(stream.Frame{Body: 1 + 10, Kind: stream.KindData, Count: 1, ID: f.ID}.Append(nil), stream.StatusOK)
		},
		"other count": func(f stream.Frame) []byte {
			return append(stream.Frame{Body: 2, Kind: stream.KindData, Count: 2, ID: f.ID}.Append(nil), 1, 1)
		},
		"other chain": func(f stream.Frame) []byte {
			return append(stream.Frame{Body: 1, Kind: stream.KindData, Count: 1, ID: f.ID + 1}.Append(nil), 1)
		},
		"closes inside": func(f stream.Frame) []byte {
			return append(stream.Frame{Body: 1 + 1000, Kind: stream.KindData, Count: 1, ID: f.ID}.Append(nil), stream.StatusOK, 1, 2, 3)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := connectTo(t, func(s net.Conn) {
				var b [stream.HeaderBytes + stream.RemoteBytes]byte
				for {
					if _, err := io.ReadFull(s, b[:stream.HeaderBytes]); err != nil {
						return
					}
					f, err := stream.ParseFrame(b[:])
					if err != nil || f.Kind != stream.KindRead {
						continue
					}
					io.ReadFull(s, b[stream.HeaderBytes:])
					s.Write(answer(f))
					s.Close()
					return
				}
			}, time.Second)
			dst := alloc(t, p.node, 1000)
			defer dst.Free()
			if err := wait(t, p, []Read{readOf(dst.Bytes(), remoteOf(1, 0, 1000))}); !errors.Is(err, ErrPeerLost) && !errors.Is(err, ErrProtocol) {
				t.Fatalf("read ended with %v", err)
			}
		})
	}
}

// connectTo connects a node to a stand-in that shakes hands correctly and then runs f.
func connectTo(t testing.TB, f func(net.Conn), stall time.Duration) *Peer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s, err := ln.Accept()
		if err != nil {
			return
		}
		defer s.Close()
		if _, err := stream.Welcome(s, stream.NodeID{2}, "t", func() bool { return true }); err == nil {
			f(s)
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	n := open(t, Config{Token: "t", Providers: []string{"tcp"}, Stall: stall})
	return connect(t, n, ln.Addr().String())
}

// TestPeerThatStalls shows that a peer that takes and sends nothing is disconnected after Stall, and that its reads
// end.
func TestPeerThatStalls(t *testing.T) {
	released := make(chan struct{})
	p := connectTo(t, func(net.Conn) { <-released }, time.Second) // the handshake must also be over by then
	t.Cleanup(func() { close(released) })
	dst := alloc(t, p.node, 1000)
	defer dst.Free()
	began := time.Now()
	ended := make(chan [2]error, 1)
	p.Read([]Read{readOf(dst.Bytes(), remoteOf(1, 0, 1000))}, func(err error) { ended <- [2]error{err, p.Err()} })
	if errs := <-ended; !errors.Is(errs[0], ErrPeerLost) || !errors.Is(errs[1], ErrPeerLost) {
		t.Fatalf("read ended with %v, when the peer's error was %v", errs[0], errs[1])
	}
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("it took %v", d)
	}
}

// TestReaderThatDoesNotTake shows that a peer that requests much and takes nothing is disconnected, and that the
// buffers that it pinned are released.
func TestReaderThatDoesNotTake(t *testing.T) {
	n, good := tcpNode(t, Config{Stall: time.Second})
	b := alloc(t, n, 8<<20)
	r := b.Offer()
	s := raw(t, n)
	var ask []byte
	for i := range 20 {
		ask = stream.Frame{Body: stream.RemoteBytes, Kind: stream.KindRead, Count: 1, ID: uint64(i)}.Append(ask)
		ask = stream.AppendRemote(ask, r)
	}
	if _, err := s.Write(ask); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	done := make(chan struct{})
	go func() { b.Withdraw(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("Withdraw hangs on a peer that stalls")
	}
	b.Free()
	good()
}

func TestManyConnectionsThatSayNothing(t *testing.T) {
	n, good := tcpNode(t, Config{Stall: 2 * time.Second})
	hostport, _, _ := strings.Cut(n.Addr(), "#")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				if s, err := net.Dial("tcp", hostport); err == nil {
					defer s.Close()
				}
			}
		})
	}
	wg.Wait()
	good()
	// The silent connections end one after another, including those that still wait to be accepted.
	o := open(t, Config{Token: "a token", Providers: []string{"tcp"}})
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := o.Connect(t.Context(), n.Addr()); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatalf("a good peer does not get in: %v", err)
		}
	}
	good()
}

func TestHandshakeRefusals(t *testing.T) {
	n, good := tcpNode(t, Config{})
	hostport, _, _ := strings.Cut(n.Addr(), "#")
	dial := func() (net.Conn, error) { return net.Dial("tcp", hostport) }
	s, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.SetDeadline(time.Now().Add(time.Minute))
	s.Write([]byte("GET / HTTP/1.1\r\nHost: example\r\n\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"))
	if got, _ := io.ReadAll(s); len(got) != 0 {
		t.Errorf("a stranger was answered %q", got)
	}
	if _, err := greetAgain(t, dial, stream.NodeID{9}, "guess"); !errors.Is(err, ErrAuth) {
		t.Errorf("wrong token: %v", err)
	}
	good()
}

func TestConfigAndAddressRefusals(t *testing.T) {
	for field, c := range map[string]Config{
		"Listen":    {Listen: "nonsense"},
		"Token":     {Listen: "0.0.0.0:0"},
		"Providers": {Providers: []string{"pigeon"}},
		"PoolBytes": {PoolBytes: -1},
	} {
		if _, err := Open(c); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	n := open(t, Config{Stall: 300 * time.Millisecond})
	for _, addr := range []string{"", "x", "127.0.0.1:1#zz", "127.0.0.1:1#00"} {
		if _, err := n.Connect(context.Background(), addr); !errors.Is(err, ErrInvalid) {
			t.Errorf("address %q: %v", addr, err)
		}
	}
	gone := "127.0.0.1:1#" + hex.EncodeToString(make([]byte, len(stream.NodeID{})))
	if _, err := n.Connect(context.Background(), gone); !errors.Is(err, ErrPeerLost) {
		t.Errorf("nobody there: %v", err)
	}
}

func TestPoolIsBounded(t *testing.T) {
	n := open(t, Config{PoolBytes: 8 << 20})
	var all []*Buffer
	for {
		b, err := n.Alloc(1 << 20)
		if err != nil {
			if !errors.Is(err, ErrNoMemory) {
				t.Fatal(err)
			}
			break
		}
		all = append(all, b)
	}
	if len(all) < 4 || n.Stats().BytesRegistered > 8<<20 {
		t.Fatalf("%d buffers, %+v", len(all), n.Stats())
	}
	for _, b := range all {
		b.Free()
	}
	for _, size := range []int{0, -1} {
		if _, err := n.Alloc(size); !errors.Is(err, ErrInvalid) {
			t.Errorf("size %d: %v", size, err)
		}
	}
	if _, err := n.Alloc(BufferMax + 1); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	if s := n.Stats(); s.BuffersLive != 0 || s.BytesLive != 0 {
		t.Errorf("%+v", s)
	}
}

// TestPoolFollowsSizes shows that memory follows a change of sizes, but is not freed while a peer may read it.
func TestPoolFollowsSizes(t *testing.T) {
	n := open(t, Config{PoolBytes: 8 << 20, Token: "t", Providers: []string{"shm"}})
	for round := range 3 {
		for _, size := range []int{2000, 1 << 20, 150 << 10, 4 << 20} {
			var all []*Buffer
			for range 2 {
				b, err := n.Alloc(size)
				if err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				fill(b.Bytes(), size)
				all = append(all, b)
			}
			for _, b := range all {
				b.Free()
			}
		}
	}
	p := connect(t, open(t, Config{Token: "t", Providers: []string{"shm"}}), n.Addr())
	b := alloc(t, n, 4<<20)
	r := b.Offer()
	for range 3 {
		if _, err := readInto(t, p, r); err != nil {
			t.Fatal(err)
		}
	}
	b.Free()
	if _, err := n.Alloc(6 << 20); !errors.Is(err, ErrNoMemory) {
		t.Errorf("a segment was taken from under its reader: %v", err)
	}
}

func TestCloseWithLiveBuffersSaysSo(t *testing.T) {
	n, err := Open(Config{Stall: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	b := alloc(t, n, 100)
	if err := n.Close(); err == nil || !strings.Contains(err.Error(), "1 buffers") {
		t.Errorf("got %v", err)
	}
	b.Bytes()[0] = 1 // still mapped
}

func TestDelays(t *testing.T) {
	var h delays
	for i := range 1000 {
		h.addDelay(time.Second, time.Duration(i+1)*time.Microsecond)
	}
	d := h.readPercentiles(time.Second)
	near := func(got, want time.Duration) bool { return got >= want && got <= want+want/7 }
	if d.Count != 1000 || !near(d.P50, 500*time.Microsecond) || !near(d.P99, 990*time.Microsecond) || !near(d.P999, 999*time.Microsecond) {
		t.Errorf("%+v", d)
	}
	h.addDelay(16*time.Second, time.Microsecond)
	if d := h.readPercentiles(16 * time.Second); d.Count != 1001 {
		t.Errorf("within the window: %+v", d)
	}
	if d := h.readPercentiles(30 * time.Second); d.Count != 1 || d.P999 > 1200*time.Nanosecond {
		t.Errorf("slid: %+v", d)
	}
	if d := h.readPercentiles(time.Hour); d.Count != 0 {
		t.Errorf("long idle: %+v", d)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(stream.Frame{Kind: stream.KindEcho, ID: 5}.Append(nil))
	f.Add(append(stream.Frame{Body: 3, Kind: stream.KindMessage}.Append(nil), "abc"...))
	f.Add(stream.AppendRemote(stream.Frame{Body: stream.RemoteBytes, Kind: stream.KindRead, Count: 1, ID: 1}.Append(nil), remoteOf(1, 2, 3)))
	f.Add(append(stream.Frame{Body: 5, Kind: stream.KindData, Count: 1, ID: 1}.Append(nil), 0, 1, 2, 3, 4))
	f.Add(stream.Setup{Op: stream.SetupOffer, Why: "x"}.Append(nil))
	f.Add(stream.Granted{Layout: memory.Layout{Index: 1, Stride: memory.HeadBytes + 1024, Slots: 1}}.Append(nil, 5))
	f.Add(stream.AppendRemote(stream.Frame{Body: stream.RemoteBytes, Kind: stream.KindMessage, ID: announced}.Append(nil), remoteOf(1, 0, 100)))
	n, err := Open(Config{PoolBytes: 8 << 20})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { n.Close() })
	n.announce.Store(true)
	b, _ := n.Alloc(1000)
	b.Offer()
	f.Cleanup(b.Free)
	dst := make([]byte, 100)
	f.Fuzz(func(t *testing.T, in []byte) {
		// The same bytes, in one piece and one by one, must give the same result.
		whole, split := fuzzConn(n, dst), fuzzConn(n, dst)
		errWhole := whole.in.frames.Feed(in)
		var errSplit error
		for i := 0; i < len(in) && errSplit == nil; i++ {
			errSplit = split.in.frames.Feed(in[i : i+1])
		}
		if (errWhole == nil) != (errSplit == nil) {
			t.Fatalf("whole: %v, byte by byte: %v", errWhole, errSplit)
		}
		for _, c := range []*conn{whole, split} {
			c.out.mu.Lock()
			c.out.frames.End(ErrClosed)
			c.out.mu.Unlock()
			for _, f := range c.inbox.fetches {
				if f.buffer != nil {
					f.buffer.Free()
				}
			}
			c.inbox.releaseHeld()
		}
	})
}

// fuzzConn is a conn without a socket that has requested one read.
func fuzzConn(n *Node, dst []byte) *conn {
	c := newConn(newPeer(n, "fuzz", stream.NodeID{}), -1, false, nil)
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.out.frames.Cork()
	c.keepalive.echo.sent.Store(5)
	c.reads.chains.Ask(c.out.frames, 1, stream.Request{Reads: []Read{{Dst: dst[:4], Src: remoteOf(1, 0, 4)}}, Done: func(error) {}})
	return c
}

// TestAbsenceOfTheLoopIsNoPeersFault shows that a loop that did not run for a while, and finds every peer silent,
// disconnects none before it has had its full time from then on.
func TestAbsenceOfTheLoopIsNoPeersFault(t *testing.T) {
	const stall = time.Hour
	n := open(t, Config{Token: "t", Stall: stall})
	c := newConn(newPeer(n, "nobody", stream.NodeID{}), -1, false, nil)
	failed := func() error {
		c.out.mu.Lock()
		defer c.out.mu.Unlock()
		return c.out.frames.Err()
	}

	// An echo was sent long ago, and nothing has arrived since.
	now := 10 * stall
	c.keepalive.echo.sent.Store(1)
	c.keepalive.tick(now, now-stall)
	if err := failed(); err != nil {
		t.Fatalf("a peer that had no longer than Stall since the loop came back: %v", err)
	}
	c.keepalive.tick(now, now-stall-1)
	if err := failed(); !errors.Is(err, ErrPeerLost) {
		t.Errorf("a peer that was silent for longer than Stall since the loop came back: %v, want %v", err, ErrPeerLost)
	}
}
