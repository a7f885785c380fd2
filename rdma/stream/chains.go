package stream

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/rdma/memory"
)

// Ended is called when a chain has ended, without the lock: with the time of its start, the chain, and the error that
// done must get.
type Ended func(began time.Duration, chain []memory.Read, err error, done func(error))

// Chains are the chains of reads that this end requested and the other end has not answered, in the order of the
// requests, which is also the order of the answers.
type Chains struct {
	mu      *sync.Mutex // the stream's
	ended   Ended
	pending atomic.Int32 // len(all) - head

	all   []*Chain
	head  int // index in all: chains before it have ended
	reads int // of the chains under way
	asked uint64
	free  []*Chain
}

// Chain is one chain under way.
type Chain struct {
	id      uint64
	bytes   int
	reads   []memory.Read
	each    func(int) // may be nil
	done    func(error)
	began   time.Duration
	by      time.Duration // node time after which it is given up; 0: never
	givenUp bool          // done was called; bytes that arrive for it are dropped
	again   bool          // data already reported by each stays valid in Dst
}

// Request describes a chain and its callbacks.
type Request struct {
	Reads []memory.Read
	Each  func(int) // called for each long read that has landed; may be nil
	Done  func(error)
	By    time.Duration // node time after which it is given up; 0: never
	Again bool          // a retry after another path broke: data which that path reported stays valid in Dst
}

const (
	chainsKept = 16 // ended chains kept for reuse
	chainsGap  = 64 // ended chains at the front, before the others move up
)

// NewChains returns an empty table under a stream's lock; it needs no lock itself.
func NewChains(mu *sync.Mutex, ended Ended) *Chains { return &Chains{mu: mu, ended: ended} }

// Ask records a chain at node time now and queues the frame that requests it.
func (c *Chains) Ask(w *Writer, now time.Duration, r Request) error {
	if under := len(c.all) - c.head; under >= ChainsMax || c.reads+len(r.Reads) > ReadsMax {
		return fmt.Errorf("%w: %d chains of %d reads under way to one peer", memory.ErrTooLarge, under, c.reads)
	}

	chain := c.addChain(now, r)

	n := len(r.Reads)
	b := w.Reserve(HeaderBytes + RemoteBytes*n)[:0]
	b = Frame{Body: uint32(RemoteBytes * n), Kind: KindRead, Count: uint16(n), ID: chain.id}.Append(b)
	for i := range r.Reads {
		b = AppendRemote(b, r.Reads[i].Src)
	}
	w.Flush()
	return nil
}

func (c *Chains) addChain(now time.Duration, r Request) *Chain {
	var chain *Chain
	if k := len(c.free); k > 0 {
		chain, c.free = c.free[k-1], c.free[:k-1]
	} else {
		chain = &Chain{}
	}

	c.asked++
	*chain = Chain{id: c.asked, reads: append(chain.reads[:0], r.Reads...), each: r.Each, done: r.Done, began: now, by: r.By, again: r.Again}
	for i := range r.Reads {
		chain.bytes += len(r.Reads[i].Dst)
	}

	// Remove the ended chains at the front once they are the larger half, so that the queue neither grows nor moves
	// often.
	if c.head > chainsGap && c.head*2 > len(c.all) {
		c.all = c.all[:copy(c.all, c.all[c.head:])]
		c.head = 0
	}
	c.all = append(c.all, chain)
	c.reads += len(r.Reads)
	c.pending.Add(1)
	return chain
}

// Pending reports whether an answer is due. It needs no lock.
func (c *Chains) Pending() bool { return c.pending.Load() != 0 }

// Oldest returns the start of the chain whose answer is due; 0 if there is none.
func (c *Chains) Oldest() time.Duration {
	if c.head == len(c.all) {
		return 0
	}
	return c.all[c.head].began
}

// nextDue returns the chain that the next data frame must answer, or nil. It is called without the lock.
func (c *Chains) nextDue() *Chain {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.head == len(c.all) {
		return nil
	}
	return c.all[c.head]
}

// completeChain ends the chain whose answer was due. It is called without the lock.
func (c *Chains) completeChain(chain *Chain, err error) {
	// Remove the chain from the table before its end is reported: the callback may request the next.
	c.mu.Lock()
	c.all[c.head] = nil
	c.head++
	if c.head == len(c.all) {
		c.all, c.head = c.all[:0], 0
	}
	c.reads -= len(chain.reads)
	c.pending.Add(-1)
	c.mu.Unlock()

	if !chain.givenUp {
		c.ended(chain.began, chain.reads, err, chain.done)
	}

	// The chain may only now serve another request, because its reads were lent to the callback.
	clear(chain.reads)
	chain.each, chain.done = nil, nil
	c.mu.Lock()
	if len(c.free) < chainsKept {
		c.free = append(c.free, chain)
	}
	c.mu.Unlock()
}

// Overdue returns the chains whose limit is before now. The caller passes each to Reader.GiveUp.
func (c *Chains) Overdue(now time.Duration) (overdue []*Chain) {
	for _, chain := range c.all[c.head:] {
		if !chain.givenUp && chain.by != 0 && chain.by < now {
			overdue = append(overdue, chain)
		}
	}
	return overdue
}

// Take empties the table after the end of the stream and returns the chains under way. The caller passes each to
// Abandon.
func (c *Chains) Take() []*Chain {
	left := c.all[c.head:]
	c.all, c.head, c.reads = nil, 0, 0
	c.pending.Store(0)
	return left
}

// Abandon ends a chain that Take returned. It is called without the lock.
func (c *Chains) Abandon(chain *Chain, err error) {
	if !chain.givenUp {
		c.ended(chain.began, chain.reads, err, chain.done)
	}
}
