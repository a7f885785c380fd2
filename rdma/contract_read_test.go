package rdma

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
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
			for range 3 { // shm: the first read goes over the socket, later ones use the mapping
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

// TestReadOfNoBytes shows that a read of no bytes ends like any other: with success if its source is offered, and
// otherwise refused.
func TestReadOfNoBytes(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		reader, owner, p := pair(t, c)
		dst, src := alloc(t, reader, 8), alloc(t, owner, 8)
		defer dst.Free()
		defer src.Free()
		fill(src.Bytes(), 3)
		whole := src.Offer()
		none, behind := whole, whole
		none.Length = 0
		behind.Offset, behind.Length = 8, 0

		// Alone, and among reads with bytes.
		for _, chain := range [][]Read{
			{readOf(nil, none)}, {readOf(dst.Bytes()[8:], behind)}, {readOf(nil, none), readOf(dst.Bytes(), whole), readOf(dst.Bytes()[8:], behind)},
		} {
			if err := wait(t, p, chain); err != nil {
				t.Errorf("%d reads: %v", len(chain), err)
			}
		}
		if !bytes.Equal(dst.Bytes(), src.Bytes()) {
			t.Error("the read between reads of no bytes brought other bytes")
		}

		src.Withdraw()
		if err := wait(t, p, []Read{readOf(nil, none)}); !errors.Is(err, ErrNotOffered) {
			t.Errorf("after withdraw: %v", err)
		}
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

// TestNoTornReads shows that a buffer that is withdrawn and rewritten while peers read it is never read half old and
// half new.
func TestNoTornReads(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		reader, owner, p := pair(t, c)
		src, dst := alloc(t, owner, 64<<10), alloc(t, reader, 64<<10)
		defer src.Free()
		defer dst.Free()
		var live, began, turns atomic.Uint64 // the key of the offer; reads begun; offers ended
		var took atomic.Int64                // duration of the last read in ns
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
				for k := range b { // from the end, because a running copy has not reached it yet
					b[len(b)-1-k] = byte(i)
				}
				live.Store(src.Offer().Key)
				// One read begins and ends under the offer; a later one is interrupted, sometimes early and sometimes
				// late.
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

// TestNoEarlyReads shows that a buffer whose key peers get before its bytes are written is not read before it is
// published.
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
					// A read that comes after the buffer's end and before the peer's is refused by the peer itself.
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
