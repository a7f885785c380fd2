package rdma

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/rdma/memory"
)

func TestReadWhatIsOffered(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		_, owner, p := pair(t, c)
		for _, size := range []int{1, 64, 4096, 150 << 10, 3<<20 + 17} {
			b := alloc(t, owner, size)
			fill(b.Bytes(), size)
			r := b.Offer()
			for range 3 { // shm: the first goes over the socket, later ones read the mapping
				got, err := readInto(t, p, r)
				if err != nil || !bytes.Equal(got, b.Bytes()) {
					t.Fatalf("read of %d bytes over %s: %v, equal %v", size, p.Provider(), err, bytes.Equal(got, b.Bytes()))
				}
			}
			part := Remote{Key: r.Key, Offset: uint32(size / 2), Length: uint32(size - size/2)}
			if got, err := readInto(t, p, part); err != nil || !bytes.Equal(got, b.Bytes()[size/2:]) {
				t.Fatalf("read of a part: %v", err)
			}
			b.Free()
		}
	})
}

func TestReadChain(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		reader, owner, p := pair(t, c)
		const n, size = 200, 5000
		var chain []Read
		var srcs []*Buffer
		dst := alloc(t, reader, n*size)
		defer dst.Free()
		for i := range n {
			b := alloc(t, owner, size)
			defer b.Free()
			fill(b.Bytes(), i)
			srcs = append(srcs, b)
			chain = append(chain, Read{Dst: dst.Bytes()[i*size : (i+1)*size], Src: b.Offer()})
		}
		for round := range 3 {
			clear(dst.Bytes())
			if err := wait(t, p, chain); err != nil {
				t.Fatal(round, err)
			}
			for i := range chain {
				if !bytes.Equal(chain[i].Dst, srcs[i].Bytes()) {
					t.Fatalf("round %d: read %d differs", round, i)
				}
			}
		}
	})
}

func TestReadRefused(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		_, owner, p := pair(t, c)
		b := alloc(t, owner, 1000)
		defer b.Free()
		fill(b.Bytes(), 1)
		r := b.Offer()
		if _, err := readInto(t, p, r); err != nil {
			t.Fatal(err)
		}
		bad := map[string]Remote{
			"past the end":        remoteOf(r.Key, 0, 1001),
			"offset past the end": remoteOf(r.Key, 1001, 1),
			"offset overflows":    remoteOf(r.Key, ^uint32(0), 2),
			"no key":              remoteOf(0, 0, 10),
			"guessed key":         remoteOf(r.Key^1<<60, 0, 10),
			"no such segment":     remoteOf(memory.NoKey&^(memory.SlotsMax-1)|r.Key, 0, 10),
			"no such slot":        remoteOf(r.Key|(memory.SlotsMax-1), 0, 10),
		}
		for name, remote := range bad {
			if _, err := readInto(t, p, remote); !errors.Is(err, ErrNotOffered) {
				t.Errorf("%s: %v, want ErrNotOffered", name, err)
			}
		}
		r2 := b.Offer()
		if _, err := readInto(t, p, r); !errors.Is(err, ErrNotOffered) {
			t.Errorf("old key after a second offer: %v", err)
		}
		if _, err := readInto(t, p, r2); err != nil {
			t.Errorf("new key: %v", err)
		}
		b.Withdraw()
		if _, err := readInto(t, p, r2); !errors.Is(err, ErrNotOffered) {
			t.Errorf("after withdraw: %v", err)
		}
		if p.Err() != nil {
			t.Errorf("a refused read must not cost the peer: %v", p.Err())
		}
	})
}

func TestChainPartlyRefused(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		reader, owner, p := pair(t, c)
		dst := alloc(t, reader, 4000)
		defer dst.Free()
		var chain []Read
		var bufs []*Buffer
		for i := range 4 {
			b := alloc(t, owner, 1000)
			fill(b.Bytes(), i)
			bufs = append(bufs, b)
			chain = append(chain, readOf(dst.Bytes()[i*1000:(i+1)*1000], b.Offer()))
		}
		if err := wait(t, p, chain); err != nil {
			t.Fatal(err)
		}
		bufs[1].Free()
		bufs[3].Withdraw()
		clear(dst.Bytes())
		err := wait(t, p, chain)
		var ce *ChainError
		if !errors.As(err, &ce) || !errors.Is(err, ErrNotOffered) || !slices.Equal(ce.Failed, []int{1, 3}) {
			t.Fatalf("got %v (%+v), want reads 1 and 3 refused", err, ce)
		}
		for _, i := range []int{0, 2} {
			if !bytes.Equal(chain[i].Dst, bufs[i].Bytes()) {
				t.Errorf("read %d was not filled", i)
			}
			bufs[i].Free()
		}
		bufs[3].Free()
	})
}

func TestReadInvalid(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		_, _, p := pair(t, c)
		if err := wait(t, p, nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("empty chain: %v", err)
		}
		if err := wait(t, p, []Read{readOf(make([]byte, 5), remoteOf(1, 0, 6))}); !errors.Is(err, ErrInvalid) {
			t.Errorf("length differs: %v", err)
		}
		if err := wait(t, p, make([]Read, ChainMax+1)); !errors.Is(err, ErrTooLarge) {
			t.Errorf("long chain: %v", err)
		}
		if err := p.Send(make([]byte, MessageMax), []byte{1}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("long message: %v", err)
		}
	})
}

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

// Answers go back over the peer that a message came from, and may be sent from Receive.
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

// Many goroutines send and read at once; each one's messages stay in order and whole.
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

// Messages that come while long reads are due do not end up in the reads' bytes.
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
		oc.Receive = func(from *Peer, msg []byte) { // every message is answered by several
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

// A buffer that is withdrawn and rewritten while peers read it is never read torn.
func TestNoTornReads(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		reader, owner, p := pair(t, c)
		src, dst := alloc(t, owner, 64<<10), alloc(t, reader, 64<<10)
		defer src.Free()
		defer dst.Free()
		var live, began, turns atomic.Uint64 // the offer's key; reads begun; offers ended
		var took atomic.Int64                // ns of the last read
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				src.Withdraw()
				b := src.Bytes()
				for k := range b { // from the end: a copy that is under way is still to get there
					b[len(b)-1-k] = byte(i)
				}
				live.Store(src.Offer().Key)
				// One read begins and ends under it, a later one is broken into, now sooner, now later.
				for from := began.Load(); began.Load() < from+2; runtime.Gosched() {
					select {
					case <-stop:
						return
					default:
					}
				}
				turns.Add(1)
				for at := time.Now(); time.Since(at) < time.Duration(took.Load())*time.Duration(i%16)/16; {
				}
			}
		})
		good := 0
		const rounds = 200
		for turns.Load() < rounds {
			began.Add(1)
			at := time.Now()
			err := wait(t, p, []Read{readOf(dst.Bytes(), remoteOf(live.Load(), 0, 64<<10))})
			took.Store(int64(time.Since(at)))
			if err == nil {
				good++
				if first := dst.Bytes()[0]; bytes.Count(dst.Bytes(), []byte{first}) != len(dst.Bytes()) {
					t.Fatal("torn read")
				}
			} else if !errors.Is(err, ErrNotOffered) {
				t.Fatal(err)
			}
		}
		close(stop)
		wg.Wait()
		if good < rounds {
			t.Fatalf("%d reads succeeded under %d offers", good, rounds)
		}
	})
}

// What is told to peers before it is written is not read before it is published.
func TestNoEarlyReads(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		reader, owner, p := pair(t, c)
		src, dst := alloc(t, owner, 64<<10), alloc(t, reader, 64<<10)
		defer src.Free()
		defer dst.Free()
		if _, err := readInto(t, p, src.Offer()); err != nil {
			t.Fatal(err)
		}
		for round := range 30 {
			r := src.Reserve()
			told := make(chan struct{})
			go func() {
				defer close(told)
				for k := range src.Bytes() {
					src.Bytes()[k] = byte(round)
				}
				src.Publish(r)
			}()
			for end := time.Now().Add(10 * time.Second); ; {
				err := wait(t, p, []Read{readOf(dst.Bytes(), r)})
				if err == nil {
					break
				}
				if !errors.Is(err, ErrNotOffered) || time.Now().After(end) {
					t.Fatal(err)
				}
			}
			<-told
			if bytes.Count(dst.Bytes(), []byte{byte(round)}) != len(dst.Bytes()) {
				t.Fatalf("round %d: read before it was published", round)
			}
			part := remoteOf(r.Key, 1000, 63<<10)
			if err := wait(t, p, []Read{readOf(dst.Bytes()[:63<<10], part)}); err != nil || dst.Bytes()[0] != byte(round) {
				t.Fatalf("a part: %v", err)
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

func TestEveryReadEndsWhenThePeerCloses(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		var lost atomic.Int32
		c.Lost = func(*Peer, error) { lost.Add(1) }
		reader, owner, p := pair(t, c)
		src, dst := alloc(t, owner, 1<<20), alloc(t, reader, 1<<20)
		r := src.Offer()
		const n = 500
		var ended atomic.Int32
		all := make(chan struct{})
		go func() {
			for range n {
				p.Read([]Read{readOf(dst.Bytes(), r)}, func(err error) {
					// A read that came before the peer's end and after the buffer's is refused by the peer itself.
					if err != nil && !errors.Is(err, ErrPeerLost) && !errors.Is(err, ErrNotOffered) {
						t.Errorf("a read of a peer that closes ended with %v", err)
					}
					if ended.Add(1) == n {
						close(all)
					}
				})
			}
		}()
		time.Sleep(2 * time.Millisecond)
		src.Free()
		if err := owner.Close(); err != nil {
			t.Error(err)
		}
		select {
		case <-all:
		case <-time.After(10 * time.Second):
			t.Fatalf("%d of %d reads ended", ended.Load(), n)
		}
		<-p.gone
		if err := p.Err(); !errors.Is(err, ErrPeerLost) {
			t.Errorf("peer lost with %v", err)
		}
		if err := wait(t, p, []Read{readOf(dst.Bytes(), r)}); !errors.Is(err, ErrPeerLost) {
			t.Errorf("read after loss: %v", err)
		}
		if err := p.Send([]byte("x")); !errors.Is(err, ErrPeerLost) {
			t.Errorf("send after loss: %v", err)
		}
		dst.Free()
		if n := lost.Load(); n != 2 {
			t.Errorf("Lost called %d times, want 2", n)
		}
		if s := reader.Stats(); s.BuffersLive != 0 || len(s.Peers) != 0 {
			t.Errorf("left over: %+v", s)
		}
	})
}

// A process that dies unheard and starts again on its address is another node: whoever has the address of
// the one before neither reaches it nor counts as its peer.
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

func TestReadAllocatesNothing(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		if raceEnabled || c.TLS != nil {
			t.Skip("counts allocations of plain code")
		}
		rc := c
		got := make(chan struct{}, 1)
		oc := c
		oc.Receive = func(*Peer, []byte) { got <- struct{}{} }
		reader, owner := open(t, rc), open(t, oc)
		p := connect(t, reader, owner.Addr())
		src, dst := alloc(t, owner, 150<<10), alloc(t, reader, 150<<10)
		defer src.Free()
		defer dst.Free()
		chain := []Read{readOf(dst.Bytes(), src.Offer())}
		ch := make(chan error, 1)
		done := func(err error) { ch <- err }
		msg := make([]byte, 10000)
		once := func() {
			p.Read(chain, done)
			if err := <-ch; err != nil {
				t.Error(err)
			}
			p.Send(msg[:24], msg[24:])
			<-got
			b, err := owner.Alloc(5000)
			if err != nil {
				t.Error(err)
			}
			b.Offer()
			b.Free()
		}
		for range 20 {
			once()
		}
		if n := leastAllocations(once); n > 0 {
			t.Errorf("%.2f allocations per read, message and buffer", n)
		}
	})
}
