package rdma

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// mapObject maps size bytes of a file in memory, and returns the file.
func mapObject(t *testing.T, size int) (*os.File, []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("downbeat-test", 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "object")
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return f, b
}

// TestLentMemory shows that memory lent by another process is read in place, and that reads are refused after that
// process has removed it. It runs over every provider, beside other reads that succeed.
func TestLentMemory(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		_, owner, p := pair(t, c)
		const size = 40 << 10
		file, lent := mapObject(t, size)
		fill(lent, 1)

		// Its slot lies in a segment that the reader knows, but the bytes there are not the lent ones.
		small := alloc(t, owner, 1)
		granted0(t, p, small.Offer())
		small.Free()
		b, err := owner.pool.Lend(lent)
		if err != nil {
			t.Fatal(err)
		}
		own := alloc(t, owner, size)
		defer own.Free()
		fill(own.Bytes(), 2)
		good := own.Offer()

		for range 3 {
			if got, err := readInto(t, p, b.Offer()); err != nil || !bytes.Equal(got, lent) {
				t.Fatalf("lent bytes: %v", err)
			}
			if got, err := readInto(t, p, good); err != nil || !bytes.Equal(got, own.Bytes()) {
				t.Fatalf("a buffer beside them: %v", err)
			}
		}

		// A late offer, and a part of it.
		r := b.Reserve()
		if _, err := readInto(t, p, r); !errors.Is(err, ErrNotOffered) {
			t.Errorf("before Publish: %v", err)
		}
		b.Publish(r)
		if got, err := readInto(t, p, remoteOf(r.Key, 100, 5000)); err != nil || !bytes.Equal(got, lent[100:5100]) {
			t.Errorf("a part: %v", err)
		}

		// Its pages disappear: that read is refused, and the other read and the peer still work.
		if err := file.Truncate(0); err != nil {
			t.Fatal(err)
		}
		dst := alloc(t, p.node, 2*size)
		defer dst.Free()
		err = wait(t, p, []Read{readOf(dst.Bytes()[:size], r), readOf(dst.Bytes()[size:], good)})
		var chain *ChainError
		if !errors.As(err, &chain) || len(chain.Failed) != 1 || chain.Failed[0] != 0 || !bytes.Equal(dst.Bytes()[size:], own.Bytes()) {
			t.Errorf("after they went: %v", err)
		}

		b.Withdraw()
		if _, err := readInto(t, p, r); !errors.Is(err, ErrNotOffered) {
			t.Errorf("after Withdraw: %v", err)
		}
		b.Free()

		// The slot is free again: its next owner has a normal buffer.
		again := alloc(t, owner, 1)
		defer again.Free()
		again.Bytes()[0] = 7
		if got, err := readInto(t, p, again.Offer()); err != nil || got[0] != 7 {
			t.Errorf("the slot's next owner: %v %v", got, err)
		}
	})
}

// TestLendsWithinTheProcess shows that a node lends only to peers of its own process.
func TestLendsWithinTheProcess(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		_, owner, p := pair(t, c)
		if p.Provider() == "local" {
			b, ok := owner.Lend(make([]byte, 100))
			if !ok {
				t.Fatal("nothing is lent within the process")
			}
			b.Free()
			return
		}

		// The connector may know its peer a moment before the peer knows it.
		until(t, "the owner knows its peer", func() bool { return owner.apart.Load() == 1 })
		if b, ok := owner.Lend(make([]byte, 100)); ok {
			b.Free()
			t.Fatalf("lent to a peer over %s", p.Provider())
		}

		p.node.Close()
		until(t, "the peer that is apart has gone", func() bool {
			b, ok := owner.Lend(make([]byte, 100))
			if ok {
				b.Free()
			}
			return ok
		})
	})
}
