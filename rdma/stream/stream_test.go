package stream

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"downbeat.dev/rdma/memory"
)

// taker keeps a Reader's output.
type taker struct {
	messages [][]byte
	frames   []Frame
	next     uint64
}

func (k *taker) TakeMessage(id uint64, msg []byte) error {
	if id != k.next {
		return fmt.Errorf("message %d, want %d", id, k.next)
	}
	k.next++
	k.messages = append(k.messages, bytes.Clone(msg))
	return nil
}

func (k *taker) TakeFrame(f Frame, _ []byte) error {
	k.frames = append(k.frames, f)
	return nil
}

func (k *taker) Calling() {}

// end is one end of a stream between two sockets.
type end struct {
	mu     sync.Mutex
	w      *Writer
	r      *Reader
	chains *Chains
	fd     int
	taken  taker
	ready  chan struct{} // the Writer asked for a call when the socket accepts more
}

// ends returns both ends of a stream whose sockets have small buffers, so that writes are partial.
func ends(t *testing.T) (here, there *end) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	both := [2]*end{}
	for i, fd := range fds {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096)
		e := &end{fd: fd, ready: make(chan struct{}, 1)}
		notice := func(on bool) error {
			if on {
				select {
				case e.ready <- struct{}{}:
				default:
				}
			}
			return nil
		}
		now := new(atomic.Int64)
		e.w = NewWriter(Options{Mu: &e.mu, FD: fd, Now: now, Copied: new(atomic.Int64), Notice: notice})
		e.chains = NewChains(&e.mu, func(_ time.Duration, _ []memory.Read, err error, done func(error)) { done(err) })
		e.r = NewReader(fd, false, e.chains, &e.taken, now, 0)
		both[i] = e
		t.Cleanup(func() {
			e.mu.Lock()
			e.w.End(memory.ErrClosed)
			e.mu.Unlock()
		})
	}
	return both[0], both[1]
}

// wait returns when the socket is ready, or fails the test after a long time.
func wait(t *testing.T, fd int, events int16) {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, int(patient/time.Millisecond))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			t.Fatalf("the socket never was ready: %v", err)
		}
		return
	}
}

// take reads until enough is true.
func (e *end) take(t *testing.T, enough func() bool) {
	t.Helper()
	buf := make([]byte, 16<<10)
	for !enough() {
		wait(t, e.fd, unix.POLLIN)
		if err := e.r.TakeIn(buf); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMessagesArriveInOrder shows that messages of all lengths, from several goroutines, written at once or in parts
// because of a full socket, arrive complete and in the order in which they were queued.
func TestMessagesArriveInOrder(t *testing.T) {
	here, there := ends(t)
	const senders, each = 4, 100
	var wg sync.WaitGroup
	number := uint64(0)
	var sizes []int
	for s := range senders {
		wg.Go(func() {
			for i := range each {
				size := 8 + (i*977+s*131)%(20<<10)
				here.mu.Lock()
				msg := make([]byte, size)
				binary.LittleEndian.PutUint64(msg, number)
				msg[size-1] = byte(number)
				f := Frame{Body: uint32(size), Kind: KindMessage, ID: number}
				number++
				sizes = append(sizes, size)
				if here.w.Busy() {
					here.w.Copy(f, msg[:5], msg[5:])
					here.w.Flush()
				} else {
					here.w.WriteParts(f, [][]byte{msg[:5], nil, msg[5:]})
				}
				here.mu.Unlock()
			}
		})
	}

	// Like the loop, wait until the socket accepts more.
	stop := make(chan struct{})
	var loop sync.WaitGroup
	loop.Go(func() {
		for {
			select {
			case <-here.ready:
				wait(t, here.fd, unix.POLLOUT)
				here.mu.Lock()
				here.w.Writable()
				here.mu.Unlock()
			case <-stop:
				return
			}
		}
	})

	there.take(t, func() bool { return len(there.taken.messages) == senders*each })
	close(stop)
	wg.Wait()
	loop.Wait()
	for i, msg := range there.taken.messages {
		if len(msg) != sizes[i] || binary.LittleEndian.Uint64(msg) != uint64(i) && len(msg) > 8 || msg[len(msg)-1] != byte(i) {
			t.Fatalf("message %d: %d bytes, want %d, or its content differs", i, len(msg), sizes[i])
		}
	}
	here.mu.Lock()
	defer here.mu.Unlock()
	if here.w.Bytes() != 0 || here.w.Owned() != 0 || here.w.Runs() != 0 {
		t.Errorf("%d bytes, %d owned, %d runs are left in an empty queue", here.w.Bytes(), here.w.Owned(), here.w.Runs())
	}
}

// TestChainsAreFilledInTheirOrder shows that the bytes of an answer land in their chain, and that a chain that was
// given up does not affect the next one.
func TestChainsAreFilledInTheirOrder(t *testing.T) {
	here, there := ends(t)
	const size = 3000
	dst := make([]byte, 3*size)
	var ends []error
	here.mu.Lock()
	for i := range 3 {
		err := here.chains.Ask(here.w, 1, Request{By: time.Duration(i % 2), Done: func(err error) { ends = append(ends, err) },
			Reads: []memory.Read{{Dst: dst[i*size : (i+1)*size], Src: memory.Remote{Key: 1, Length: size}}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	overdue := here.chains.Overdue(2)
	here.mu.Unlock()
	if len(overdue) != 1 {
		t.Fatalf("%d chains are overdue, want that one with a limit", len(overdue))
	}
	here.r.GiveUp(overdue[0])
	if len(ends) != 1 || ends[0] != ErrGivenUp {
		t.Fatalf("a chain that was given up ended with %v", ends)
	}

	there.take(t, func() bool { return len(there.taken.frames) == 3 })
	there.mu.Lock()
	for i, f := range there.taken.frames {
		b := there.w.Reserve(HeaderBytes + 1)
		Frame{Body: 1 + size, Kind: KindData, Count: 1, ID: f.ID}.Append(b[:0])
		b[HeaderBytes] = StatusOK
		there.w.Own(bytes.Repeat([]byte{byte(i + 1)}, size), nil)
	}
	there.w.Flush()
	there.mu.Unlock()

	buf := make([]byte, 16<<10)
	for end := time.Now().Add(patient); len(ends) < 3; {
		if time.Now().After(end) {
			t.Fatalf("%d of 3 chains ended", len(ends))
		}
		wait(t, here.fd, unix.POLLIN)
		if err := here.r.TakeIn(buf); err != nil {
			t.Fatal(err)
		}
		there.mu.Lock()
		there.w.Writable()
		there.mu.Unlock()
	}
	for i, want := range []byte{1, 0, 3} {
		if got := dst[i*size : (i+1)*size]; bytes.Count(got, []byte{want}) != size {
			t.Errorf("chain %d: its bytes are not those that were sent for it", i)
		}
	}
	if here.chains.Pending() {
		t.Error("an answer is due although all have come")
	}
}

// FuzzReader shows that the same bytes, in one piece and one by one, give the same result, and take no more memory
// than their length.
func FuzzReader(f *testing.F) {
	f.Add(Frame{Kind: KindEcho, ID: 5}.Append(nil))
	f.Add(append(Frame{Body: 3, Kind: KindMessage}.Append(nil), "abc"...))
	f.Add(Frame{Body: MessageMax, Kind: KindMessage}.Append(nil))
	f.Add(append(Frame{Body: 5, Kind: KindData, Count: 1, ID: 1}.Append(nil), 0, 1, 2, 3, 4))
	f.Add(Setup{Op: SetupOffer, Why: "x"}.Append(nil))
	f.Add(Granted{Layout: memory.Layout{Index: 1, Stride: memory.HeadBytes + 1024, Slots: 1}}.Append(nil, 5))
	f.Fuzz(func(t *testing.T, in []byte) {
		read := func(step int) (*end, error) {
			e := &end{}
			e.chains = NewChains(&e.mu, func(_ time.Duration, _ []memory.Read, err error, done func(error)) { done(err) })
			e.w = NewWriter(Options{Mu: &e.mu, FD: -1, Now: new(atomic.Int64), Copied: new(atomic.Int64)})
			e.w.Cork()
			e.chains.Ask(e.w, 1, Request{Done: func(error) {}, Reads: []memory.Read{{Dst: make([]byte, 4), Src: memory.Remote{Key: 1, Length: 4}}}})
			e.r = NewReader(-1, false, e.chains, &e.taken, new(atomic.Int64), 0)
			for at := 0; at < len(in); at += step {
				if err := e.r.Feed(in[at:min(at+step, len(in))]); err != nil {
					return e, err
				}
			}
			return e, nil
		}

		whole, errWhole := read(max(1, len(in)))
		split, errSplit := read(1)
		if (errWhole == nil) != (errSplit == nil) || len(whole.taken.messages) != len(split.taken.messages) || len(whole.taken.frames) != len(split.taken.frames) {
			t.Fatalf("whole: %v, byte by byte: %v", errWhole, errSplit)
		}
		for _, e := range []*end{whole, split} {
			if c := cap(e.r.message.msg) + cap(e.r.rest); c > 4*len(in)+2*messageStep {
				t.Fatalf("%d bytes made it allocate %d", len(in), c)
			}
		}
	})
}
