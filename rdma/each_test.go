package rdma

import (
	"bytes"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// told collects the arguments of a chain's callbacks. Concurrent calls would be a race.
type told struct {
	chain []Read
	reads []int
	bytes [][]byte // as they were at the call
	ended bool
	late  bool // called for a read after done
}

func (o *told) each(i int) {
	o.late = o.late || o.ended
	o.reads = append(o.reads, i)
	o.bytes = append(o.bytes, bytes.Clone(o.chain[i].Dst))
}

// run reads the chain to its end.
func (o *told) run(t *testing.T, p *Peer) error {
	t.Helper()
	ch := make(chan error, 1)
	p.ReadEach(o.chain, o.each, func(err error) { o.ended = true; ch <- err })
	select {
	case err := <-ch:
		if o.late {
			t.Error("a read was told of after done")
		}
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the chain never ended")
		return nil
	}
}

// mixed returns a chain of reads of several lengths and forms. long lists the reads that each reports.
func mixed(t *testing.T, reader, owner *Node) (chain []Read, want [][]byte, long []int, free func()) {
	sizes := []int{150 << 10, 100, EachMin, EachMin - 1, 90 << 10, 64 << 10, 0, 50 << 10}
	total := 0
	for _, n := range sizes {
		total += n
	}
	dst := alloc(t, reader, total)
	bufs := []*Buffer{dst}
	at := 0
	for i, n := range sizes {
		src := alloc(t, owner, n+1000)
		bufs = append(bufs, src)
		fill(src.Bytes(), i)
		r := src.Reserve() // a key that was shared before the bytes were written
		src.Publish(r)
		from := 0
		if i%2 == 0 {
			r = src.Offer()
		} else if i > 4 {
			from = 1000 // a part of a buffer
		}
		r.Offset, r.Length = uint32(from), uint32(n)
		chain = append(chain, readOf(dst.Bytes()[at:at+n], r))
		want = append(want, src.Bytes()[from:from+n])
		at += n
		if n >= EachMin {
			long = append(long, i)
		}
	}
	return chain, want, long, func() {
		for _, b := range bufs {
			b.Free()
		}
	}
}

// TestReadEach shows that each long read of a chain is reported once, in order and before done, with its bytes in
// place.
func TestReadEach(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		reader, owner, p := pair(t, c)
		chain, want, long, free := mixed(t, reader, owner)
		defer free()
		for round := range 6 { // the first rounds go over the byte stream
			for i := range chain {
				clear(chain[i].Dst)
			}
			o := told{chain: chain}
			if err := o.run(t, p); err != nil {
				t.Fatal(round, err)
			}
			if !slices.Equal(o.reads, long) {
				t.Fatalf("round %d over %s: told of %v, want %v", round, p.Provider(), o.reads, long)
			}
			for k, i := range o.reads {
				if !bytes.Equal(o.bytes[k], want[i]) {
					t.Errorf("round %d: read %d was told of before its bytes were there", round, i)
				}
			}
			for i := range chain {
				if !bytes.Equal(chain[i].Dst, want[i]) {
					t.Errorf("round %d: read %d differs", round, i)
				}
			}
			time.Sleep(5 * time.Millisecond) // until segments are granted
		}
	})
}

// TestReadEachPartlyRefused shows that done names a refused read, and that the successful reads are still reported.
func TestReadEachPartlyRefused(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		reader, owner, p := pair(t, c)
		chain, want, long, free := mixed(t, reader, owner)
		defer free()
		if err := wait(t, p, chain); err != nil {
			t.Fatal(err)
		}
		for _, i := range []int{0, 4, 7} {
			chain[i].Src.Key ^= 1 << 60
		}
		for range 3 {
			o := told{chain: chain}
			err := o.run(t, p)
			var ce *ChainError
			if !errors.As(err, &ce) || !slices.Equal(ce.Failed, []int{0, 4, 7}) {
				t.Fatalf("got %v", err)
			}
			good := slices.DeleteFunc(slices.Clone(o.reads), func(i int) bool { return slices.Contains(ce.Failed, i) })
			if wanted := slices.DeleteFunc(slices.Clone(long), func(i int) bool { return slices.Contains(ce.Failed, i) }); !slices.Equal(good, wanted) {
				t.Errorf("told of %v, want %v", good, wanted)
			}
			for k, i := range o.reads {
				if !slices.Contains(ce.Failed, i) && !bytes.Equal(o.bytes[k], want[i]) {
					t.Errorf("read %d was told of before its bytes were there", i)
				}
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
}

// TestReadEachWhenThePeerGoes shows that no read is reported twice or after done, even if owners leave in the middle
// of chains.
func TestReadEachWhenThePeerGoes(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		reader, owner, p := pair(t, c)
		chain, want, _, free := mixed(t, reader, owner)
		defer free()
		if err := wait(t, p, chain); err != nil {
			t.Fatal(err)
		}
		const n = 40
		var ended atomic.Int32
		all := make([]told, n)
		for k := range all {
			o := &all[k]
			for i := range chain { // every second read goes to memory that is not registered with verbs
				dst := make([]byte, len(want[i]))
				if k%2 == 0 {
					b := alloc(t, reader, len(want[i])+1)
					defer b.Free()
					dst = b.Bytes()[:len(want[i])]
				}
				o.chain = append(o.chain, readOf(dst, chain[i].Src))
			}
			p.ReadEach(o.chain, func(i int) {
				o.reads = append(o.reads, i)
				o.late = o.late || o.ended
				if !bytes.Equal(o.chain[i].Dst, want[i]) {
					t.Errorf("read %d of chain %d was told of without its bytes", i, k)
				}
			}, func(error) { o.ended = true; ended.Add(1) })
			if k == n/2 {
				p.Close()
			}
		}
		until(t, "every chain ended", func() bool { return ended.Load() == n })
		for k := range all {
			if all[k].late || len(slices.Compact(slices.Clone(all[k].reads))) != len(all[k].reads) || !slices.IsSorted(all[k].reads) {
				t.Errorf("chain %d was told of %v, late %v", k, all[k].reads, all[k].late)
			}
		}
	})
}

func TestReadEachAllocatesNothing(t *testing.T) {
	forAll(t, func(t *testing.T, c Config) {
		if raceEnabled || c.TLS != nil {
			t.Skip("counts allocations of plain code")
		}
		reader, owner, p := pair(t, c)
		chain, _, long, free := mixed(t, reader, owner)
		defer free()
		ch := make(chan error, 1)
		landed := 0
		each, done := func(int) { landed++ }, func(err error) { ch <- err }
		chains := 0
		once := func() {
			chains++
			p.ReadEach(chain, each, done)
			if err := <-ch; err != nil {
				t.Error(err)
			}
		}
		for range 20 {
			once()
		}
		landed, chains = 0, 0
		if n := leastAllocations(once); n > 0 {
			t.Errorf("%.2f allocations per chain", n)
		}
		if landed != chains*len(long) {
			t.Errorf("told of %d reads, want %d", landed, chains*len(long))
		}
	})
}
