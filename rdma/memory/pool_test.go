package memory

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"time"
)

func newPool(t *testing.T, size int64) *Pool {
	t.Helper()
	began := time.Now()
	p := NewPool(Options{Bytes: size, Now: func() time.Duration { return time.Since(began) + 1 }, Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() {
		if err := p.Close(time.Second); err != nil {
			t.Error(err)
		}
	})
	return p
}

func take(t *testing.T, p *Pool, size int) *Buffer {
	t.Helper()
	b, err := p.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	return b
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

// TestQuarantine shows that a buffer that was freed while a READ could be running is not reused for a while. This
// reduces the free memory but causes no error.
func TestQuarantine(t *testing.T) {
	p := newPool(t, 4<<20)
	a := take(t, p, 2<<20)
	p.Give(a.Offer().Key, true)
	a.Free()
	if s := p.Stats(); s.Quarantined != 1 || s.Live != 0 {
		t.Fatalf("%+v", s)
	}

	b := take(t, p, 2<<20)
	if a == b && p.now() < quarantine {
		t.Error("reused at once")
	}
	c := take(t, p, 2<<20) // waits for the rest of the quarantine
	if b == c || p.Stats().Quarantined != 0 {
		t.Errorf("%+v", p.Stats())
	}

	began := time.Now()
	p.Give(c.Offer().Key, true)
	c.Withdraw()
	if time.Since(began) < quarantine {
		t.Error("Withdraw did not wait for READs")
	}

	// A caller that knows that the readers have answered need not wait.
	c.Offer()
	c.WithdrawAnswered()
	c.Free()
	b.Offer()
	FreeAnswered(b)
	if n := p.Stats().Quarantined; n != 0 {
		t.Errorf("%d buffers in quarantine whose readers have answered", n)
	}
}

// TestFreedBufferWaitsForItsReader shows that a pinned buffer gets no other owner before its pin is released.
func TestFreedBufferWaitsForItsReader(t *testing.T) {
	p := newPool(t, 4<<20)
	b := take(t, p, 3<<20)
	r := b.Offer()
	pin, ok := p.Find(r)
	if !ok {
		t.Fatal("an offered buffer was not found")
	}

	b.Free()
	if _, ok := p.Find(r); ok {
		t.Error("a freed buffer was found")
	}
	if _, err := p.AllocNow(3 << 20); !errors.Is(err, ErrNoMemory) {
		t.Errorf("a buffer that is being read was given away: %v", err)
	}

	pin.Release()
	take(t, p, 3<<20).Free()
}

// TestMapped shows that another mapping of a segment sees the offered bytes, and nothing else under the key.
func TestMapped(t *testing.T) {
	p := newPool(t, 4<<20)
	b := take(t, p, 5000)
	defer b.Free()
	for i := range b.Bytes() {
		b.Bytes()[i] = byte(i)
	}
	r := b.Offer()
	seg := p.Give(r.Key, false)
	m, err := Map(seg.File(), seg.Layout())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmap()

	got := make([]byte, 5000)
	if !m.Enter() || !m.Copy(got, r) || !bytes.Equal(got, b.Bytes()) {
		t.Fatal("what is offered was not read")
	}
	m.Leave()

	bad := map[string]Remote{
		"past the end":   {r.Key, 1, 5000},
		"past the slot":  {r.Key, 1 << 30, 1},
		"no key":         {0, 0, 1},
		"another nonce":  {r.Key ^ 1<<60, 0, 1},
		"no such slot":   {r.Key | (SlotsMax - 1), 0, 1},
		"nobody's":       {NoKey, 0, 0},
		"another's slot": {r.Key + 1, 0, 1},
	}
	for name, r := range bad {
		if m.Copy(got[:min(int(r.Length), len(got))], r) {
			t.Errorf("%s: was read", name)
		}
		if pin, ok := p.Find(r); ok {
			pin.Release()
			t.Errorf("%s: was found", name)
		}
	}

	b.Withdraw()
	if m.Copy(got, r) {
		t.Error("read after the end of the offer")
	}
}

// TestMapRefuses shows that a segment without the seals is not mapped, because its owner could shrink it under its
// reader.
func TestMapRefuses(t *testing.T) {
	p := newPool(t, 4<<20)
	b := take(t, p, 5000)
	defer b.Free()
	seg := p.Give(b.Offer().Key, false)

	large := seg.Layout()
	large.Slots *= 100
	if _, err := Map(seg.File(), large); !errors.Is(err, ErrProtocol) {
		t.Errorf("a layout larger than the file: %v", err)
	}
	for _, l := range []Layout{{Index: -1, Stride: HeadBytes + classMin, Slots: 1}, {Index: SegmentsMax, Stride: HeadBytes + classMin, Slots: 1},
		{Stride: HeadBytes + classMin}, {Stride: HeadBytes + classMin, Slots: SlotsMax + 1}, {Stride: 8, Slots: 1}, {Stride: HeadBytes + classMin + 1, Slots: 1}} {
		if err := l.Check(); !errors.Is(err, ErrProtocol) {
			t.Errorf("%+v: %v", l, err)
		}
	}
}
