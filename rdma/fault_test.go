package rdma

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// raw opens a byte stream to a node as a peer that holds the token would, past the handshake.
func raw(t testing.TB, n *Node) net.Conn {
	t.Helper()
	hostport, _, _ := strings.Cut(n.Addr(), "#")
	s, err := net.Dial("tcp", hostport)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := greet(s, nodeID{1}, n.cfg.Token); err != nil {
		t.Fatal(err)
	}
	return s
}

// cutOff waits until the node has closed the stream.
func cutOff(t testing.TB, s net.Conn) {
	t.Helper()
	s.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.Copy(io.Discard, s); err != nil && errors.Is(err, context.DeadlineExceeded) {
		t.Fatal("the peer was not cut off")
	} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Fatal("the peer was not cut off")
	}
}

// tcpNode is a node with an offered buffer, and a good peer that must not be harmed.
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
		"flags":            {0, 0, 0, 0, byte(frameEcho), 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"message too long": frame{body: MessageMax + 1, kind: frameMessage}.append(nil),
		"chain too long":   frame{body: (ChainMax + 1) * readBytes, kind: frameRead, count: ChainMax + 1}.append(nil),
		"count lies":       frame{body: readBytes, kind: frameRead, count: 2}.append(nil),
		"data unasked":     append(frame{body: 1, kind: frameData, count: 1, id: 1}.append(nil), 0),
		"echo unasked":     frame{kind: frameEchoed, id: 77}.append(nil),
		"grant unasked":    grantedBody{index: 1, stride: headBytes + 1024, slots: 1}.append(nil, 5),
		"chain of too many bytes": appendRemote(appendRemote(frame{body: 2 * readBytes, kind: frameRead, count: 2}.append(nil),
			Remote{1, 0, 1 << 31}), Remote{1, 0, 1 << 31}),
		"verbs from the wrong end": verbsFrame{op: verbsAccept}.append(nil),
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

// A peer that answers a read with other sizes than asked is cut, and the read ends.
func TestPeerThatLiesAboutSizes(t *testing.T) {
	for name, answer := range map[string]func(f frame) []byte{
		"more bytes": func(f frame) []byte {
			return append(frame{body: 1 + 5000, kind: frameData, count: 1, id: f.id}.append(nil), statusOK)
		},
		"fewer bytes": func(f frame) []byte {
			return append(frame{body: 1 + 10, kind: frameData, count: 1, id: f.id}.append(nil), statusOK)
		},
		"other count": func(f frame) []byte {
			return append(frame{body: 2, kind: frameData, count: 2, id: f.id}.append(nil), 1, 1)
		},
		"other chain": func(f frame) []byte {
			return append(frame{body: 1, kind: frameData, count: 1, id: f.id + 1}.append(nil), 1)
		},
		"closes inside": func(f frame) []byte {
			return append(frame{body: 1 + 1000, kind: frameData, count: 1, id: f.id}.append(nil), statusOK, 1, 2, 3)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := connectTo(t, func(s net.Conn) {
				var b [headerBytes + readBytes]byte
				for {
					if _, err := io.ReadFull(s, b[:headerBytes]); err != nil {
						return
					}
					f, err := parseFrame(b[:])
					if err != nil || f.kind != frameRead {
						continue
					}
					io.ReadFull(s, b[headerBytes:])
					s.Write(answer(f))
					s.Close()
					return
				}
			}, time.Second)
			dst := alloc(t, p.node, 1000)
			defer dst.Free()
			if err := wait(t, p, []Read{{dst.Bytes(), Remote{1, 0, 1000}}}); !errors.Is(err, ErrPeerLost) && !errors.Is(err, ErrProtocol) {
				t.Fatalf("read ended with %v", err)
			}
		})
	}
}

// connectTo connects a node to a stand-in that shakes hands properly and is then up to f.
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
		if _, err := welcome(s, nodeID{2}, "t", func() bool { return true }); err == nil {
			f(s)
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	n := open(t, Config{Token: "t", Providers: []string{"tcp"}, Stall: stall})
	return connect(t, n, ln.Addr().String())
}

// A peer that takes nothing and says nothing is cut after Stall; its reads end.
func TestPeerThatStalls(t *testing.T) {
	released := make(chan struct{})
	p := connectTo(t, func(net.Conn) { <-released }, time.Second) // the handshake, too, must be over by then
	t.Cleanup(func() { close(released) })
	dst := alloc(t, p.node, 1000)
	defer dst.Free()
	began := time.Now()
	if err := wait(t, p, []Read{{dst.Bytes(), Remote{1, 0, 1000}}}); !errors.Is(err, ErrPeerLost) {
		t.Fatalf("read ended with %v", err)
	}
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("it took %v", d)
	}
}

// A peer that asks for much and takes nothing is cut; what it pinned is released.
func TestReaderThatDoesNotTake(t *testing.T) {
	n, good := tcpNode(t, Config{Stall: time.Second})
	b := alloc(t, n, 8<<20)
	r := b.Offer()
	s := raw(t, n)
	var ask []byte
	for i := range 20 {
		ask = frame{body: readBytes, kind: frameRead, count: 1, id: uint64(i)}.append(ask)
		ask = appendRemote(ask, r)
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
	// The silent ones end one after another, also those that still wait to be accepted.
	o := open(t, Config{Token: "a token", Providers: []string{"tcp"}})
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := o.Connect(t.Context(), n.Addr()); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%d handshakes still open: %v", n.greeting.Load(), err)
		}
	}
	good()
}

func TestHandshakeRefusals(t *testing.T) {
	n, good := tcpNode(t, Config{})
	hostport, _, _ := strings.Cut(n.Addr(), "#")
	dial := func() net.Conn {
		s, err := net.Dial("tcp", hostport)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		s.SetDeadline(time.Now().Add(10 * time.Second))
		return s
	}
	s := dial()
	h := newHello(nodeID{9})
	h.version = 7
	s.Write(h.append(nil))
	var answer [helloBytes + 1]byte
	if _, err := io.ReadFull(s, answer[:]); err != nil || answer[helloBytes] != greetVersion {
		t.Errorf("another version: %v, status %d", err, answer[helloBytes])
	}
	s = dial()
	s.Write([]byte("GET / HTTP/1.1\r\nHost: example\r\n\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"))
	if got, _ := io.ReadAll(s); len(got) != 0 {
		t.Errorf("a stranger was answered %q", got)
	}
	s = dial()
	if _, err := greet(s, nodeID{9}, "guess"); !errors.Is(err, ErrAuth) {
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
	gone := "127.0.0.1:1#" + hex.EncodeToString(make([]byte, idBytes))
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

// Memory follows a change of sizes, but not from under a peer that may read it.
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

// A buffer that was freed while a READ could be under way is not reused for a while, which shortens
// memory but ends in no error.
func TestQuarantine(t *testing.T) {
	n := open(t, Config{PoolBytes: 4 << 20})
	a := alloc(t, n, 2<<20)
	a.seg.exposed.Store(true)
	a.Offer()
	a.Free()
	if s := n.Stats(); s.BuffersQuarantined != 1 || s.BuffersLive != 0 {
		t.Fatalf("%+v", s)
	}
	b := alloc(t, n, 2<<20)
	if a == b && n.pool.now() < quarantine {
		t.Error("reused at once")
	}
	c := alloc(t, n, 2<<20) // waits for what is left of it
	if b == c || n.Stats().BuffersQuarantined != 0 {
		t.Errorf("%+v", n.Stats())
	}
	began := time.Now()
	c.seg.exposed.Store(true)
	c.Offer()
	c.Withdraw()
	if time.Since(began) < quarantine {
		t.Error("Withdraw did not wait for READs")
	}
	c.Offer()
	c.WithdrawAnswered()
	c.Free()
	if n := n.Stats().BuffersQuarantined; n != 0 {
		t.Errorf("%d buffers in quarantine whose readers have answered", n)
	}
	b.Free()
}

func TestSizeClasses(t *testing.T) {
	last := -1
	for _, size := range []int{1, 1024, 1025, 1280, 1281, 4096, 4097, 5000, 150 << 10, 1 << 20, 1<<20 + 1, BufferMax - 1, BufferMax} {
		class, stride := classOf(size)
		if stride < size || size > classMin && stride > size+size/4 || class < last || class >= classesMax || stride%256 != 0 {
			t.Errorf("size %d: class %d of %d bytes", size, class, stride)
		}
		if c, s := classOf(stride); c != class || s != stride {
			t.Errorf("class %d: %d bytes belong to class %d of %d", class, stride, c, s)
		}
		last = class
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
		h.add(time.Second, time.Duration(i+1)*time.Microsecond)
	}
	d := h.read(time.Second)
	near := func(got, want time.Duration) bool { return got >= want && got <= want+want/7 }
	if d.Count != 1000 || !near(d.P50, 500*time.Microsecond) || !near(d.P99, 990*time.Microsecond) || !near(d.P999, 999*time.Microsecond) {
		t.Errorf("%+v", d)
	}
	h.add(16*time.Second, time.Microsecond)
	if d := h.read(16 * time.Second); d.Count != 1001 {
		t.Errorf("within the window: %+v", d)
	}
	if d := h.read(30 * time.Second); d.Count != 1 || d.P999 > 1200*time.Nanosecond {
		t.Errorf("slid: %+v", d)
	}
	if d := h.read(time.Hour); d.Count != 0 {
		t.Errorf("long idle: %+v", d)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(frame{kind: frameEcho, id: 5}.append(nil))
	f.Add(append(frame{body: 3, kind: frameMessage}.append(nil), "abc"...))
	f.Add(appendRemote(frame{body: readBytes, kind: frameRead, count: 1, id: 1}.append(nil), Remote{1, 2, 3}))
	f.Add(append(frame{body: 5, kind: frameData, count: 1, id: 1}.append(nil), 0, 1, 2, 3, 4))
	f.Add(verbsFrame{op: verbsOffer, why: "x"}.append(nil))
	f.Add(grantedBody{index: 1, stride: headBytes + 1024, slots: 1}.append(nil, 5))
	f.Add(appendRemote(frame{body: readBytes, kind: frameMessage, id: announced}.append(nil), Remote{1, 0, 100}))
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
		// The same bytes, whole and one by one, must lead to the same end.
		whole, split := fuzzConn(n, dst), fuzzConn(n, dst)
		errWhole := whole.feed(in)
		var errSplit error
		for i := 0; i < len(in) && errSplit == nil; i++ {
			errSplit = split.feed(in[i : i+1])
		}
		if (errWhole == nil) != (errSplit == nil) {
			t.Fatalf("whole: %v, byte by byte: %v", errWhole, errSplit)
		}
		if cap(whole.in.msg) > 2*len(in)+2*messageStep {
			t.Fatalf("%d bytes made it allocate %d", len(in), cap(whole.in.msg))
		}
		for _, c := range []*conn{whole, split} {
			c.mu.Lock()
			c.out.discard()
			c.mu.Unlock()
			for _, f := range c.in.fetches {
				if f.buffer != nil {
					f.buffer.Free()
				}
			}
			c.in.release()
		}
	})
}

// fuzzConn is a conn without a socket that has asked for one read.
func fuzzConn(n *Node, dst []byte) *conn {
	c := newConn(newPeer(n, "fuzz", nodeID{}))
	c.peer.conn = c
	c.corked = true
	c.echoSent.Store(5)
	c.newOp([]Read{{dst[:4], Remote{1, 0, 4}}}, func(error) {}, 1)
	return c
}

func FuzzHandshake(f *testing.F) {
	f.Add(newHello(nodeID{1}).append(nil))
	f.Add(binary.LittleEndian.AppendUint16([]byte(magic), 9))
	f.Fuzz(func(t *testing.T, in []byte) {
		s := &script{in: bytes.NewReader(in)}
		if _, err := welcome(s, nodeID{2}, "token", func() bool { return true }); err == nil {
			t.Fatal("a peer without the token was welcomed")
		}
		s = &script{in: bytes.NewReader(in)}
		if _, err := greet(s, nodeID{2}, "token"); err == nil {
			t.Fatal("an acceptor without the token was believed")
		}
	})
}

// script is a stream that says what was written down and swallows the rest.
type script struct{ in io.Reader }

func (s *script) Read(b []byte) (int, error)  { return s.in.Read(b) }
func (s *script) Write(b []byte) (int, error) { return len(b), nil }
