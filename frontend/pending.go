package frontend

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

const (
	shardBits   = 4
	shardCount  = 1 << shardBits
	slotBits    = 24
	liveMost    = wire.WindowMax       // requests at a time
	tick        = 2 * time.Millisecond // precision of the sweep
	wheelSize   = 512                  // ticks of one turn of the wheel
	generations = 1<<(64-shardBits-slotBits) - 1
	nowhere     = int32(-1)
)

// state of a slot.
const (
	free    uint8 = iota
	live          // waits for its end; the goroutine that changes the state under the lock ends it
	claimed       // being ended; its owner will send on done
)

// call is a slot of the pending table: one live request. Slots are made once and reused, so pointers to them stay
// valid; the generation in the id distinguishes the requests of one slot.
type call struct {
	shard *shard
	index int32
	done  chan struct{} // cap 1: sent once by the goroutine that claimed the call, received once by its caller

	// Guarded by shard.mu.
	state      uint8
	hooked     bool   // Prepare fills the input while the request queues
	filling    bool   // Prepare has not returned: a failed read of the input does not end the request
	held       bool   // Prepare is the model's first: the request is sent when it has returned
	again      bool   // a backend has tried to read the input meanwhile
	hastened   bool   // the scheduler was told that the input is there: another backend may know of it
	spared     bool   // its scheduler had no backend for it, see spareCall
	newest     bool   // the request named no version
	holds      bool   // backends are asked to hold outputs
	gen        uint64 // of the live request, or of the latest
	epoch      uint64 // epoch of the session that the request was submitted in; 0: not yet
	expire     int64  // deadline + grace, on the client's clock
	next, prev int32  // links of the wheel's bucket, as slots of this shard
	resubmits  uint32

	// Written by the caller while it owns the slot. Between live and done only a resubmission writes the first two,
	// under the lock.
	model    *Model
	service  uint32  // the id sent to the scheduler: the model's, or that of the family's class that keeps the floor
	floor    float64 // accuracy floor
	input    model.Descriptor
	priority uint8
	start    int64 // on the client's clock, ns
	deadline int64
	readyAt  int64  // when the hook is expected to have filled the input
	target   int64  // the deadline sent to the scheduler, which is earlier by the margin
	dst      []byte // the caller's buffer for the output; nil: a pooled one

	// Written by the goroutine that claimed the call, read by the caller after done.
	reason model.Reason
	local  bool
	cause  error
	answer uint32 // wire.ResultHeader.Answer
	out    []byte
	store  *[]byte // the pooled buffer of out
	exec   int64
	staged bool // stages are known
	stages wire.Stages
	holder *rdma.Peer // the backend that holds outputs; nil: out contains all outputs
	end    int64

	submit [1]wire.Submit // argument of FrontendLink.Submit, kept here to avoid an allocation
}

func (c *call) id() uint64 {
	return c.gen<<(shardBits+slotBits) | uint64(c.index)<<shardBits | uint64(c.shard.number)
}

// shard is one lock of the pending table and the slots under it, with a timing wheel over them.
type shard struct {
	number uint32

	mu    sync.Mutex
	slots []*call
	free  []int32
	wheel [wheelSize]int32 // first slot of each bucket, or nowhere
	swept int64            // the last tick handled by the sweep
	_     [64]byte         // shards lie in one array: keeps their locks on separate cache lines
}

// pending is the table of live requests.
//
// Its ids must differ from those of a dead process on the same address, because answers to that process's requests
// may still arrive from a scheduler and backends that have not noticed its death. So the first generation of all
// slots is random. Within a slot generations count up, so an id repeats only after 2^36 others.
type pending struct {
	shards [shardCount]shard
	first  uint64 // generation before the first one of each slot
	live   atomic.Int64
	max    int64
	each   int // the most slots of a shard, a power of two; together they suffice for max
}

// idWindow returns wire.FrontendHello.Window: ids are unique modulo it.
func (p *pending) idWindow() uint32 { return uint32(p.each) * shardCount }

func (p *pending) init(max int) {
	p.max = int64(max)

	// A random start separates these ids from those of an earlier process.
	var seed [8]byte
	rand.Read(seed[:])
	p.first = binary.LittleEndian.Uint64(seed[:]) & generations

	// A power of two per shard, so that an id's low bits are its place in the scheduler's window.
	for p.each = 1; p.each*shardCount < max; {
		p.each *= 2
	}

	for i := range p.shards {
		s := &p.shards[i]
		s.number = uint32(i)
		for b := range s.wheel {
			s.wheel[b] = nowhere
		}
	}
}

// takeSlot reserves a slot for the caller; nil if max requests are live. first reports that none was live before.
func (p *pending) takeSlot(pick uint32) (c *call, first bool) {
	// Count before looking for a slot: below the limit some shard has a free slot.
	n := p.live.Add(1)
	if n > p.max {
		p.live.Add(-1)
		return nil, false
	}
	return p.freeSlot(pick), n == 1
}

// freeSlot returns a free slot, preferably in the given shard. There is one, as fewer than max are live.
func (p *pending) freeSlot(pick uint32) *call {
	// The next shard is tried where one is full.
	for ; ; pick++ {
		if c := p.shards[pick%shardCount].freeSlot(p.each, p.first); c != nil {
			return c
		}
	}
}

func (s *shard) freeSlot(most int, gen uint64) *call {
	s.mu.Lock()
	defer s.mu.Unlock()

	// Reuse the slot freed last: its memory is in the cache.
	if n := len(s.free); n > 0 {
		c := s.slots[s.free[n-1]]
		s.free = s.free[:n-1]
		return c
	}

	if len(s.slots) == most {
		return nil
	}
	c := &call{shard: s, gen: gen, index: int32(len(s.slots)), done: make(chan struct{}, 1), next: nowhere, prev: nowhere}
	s.slots = append(s.slots, c)
	s.free = append(s.free, 0)[:len(s.free)] // room for the slot's return
	return c
}

// armCall makes a taken slot live.
func (p *pending) armCall(c *call, epoch uint64) uint64 {
	s := c.shard
	s.mu.Lock()

	// A new generation makes a new id: an answer to the slot's previous request finds no call.
	c.gen = (c.gen + 1) & generations
	c.state, c.epoch, c.again, c.spared, c.hastened, c.resubmits = live, epoch, false, false, false, 0
	s.linkCall(c)
	id := c.id()
	s.mu.Unlock()
	return id
}

// releaseSlot frees a slot. The caller must have received its end, or have claimed it.
func (p *pending) releaseSlot(c *call) {
	// A free slot must not keep the caller's objects alive.
	c.model, c.dst, c.out, c.store, c.cause, c.holder = nil, nil, nil, nil, nil, nil
	s := c.shard
	s.mu.Lock()
	c.state = free
	s.free = append(s.free, c.index)
	s.mu.Unlock()
	p.live.Add(-1)
}

// findCall returns the live call of an id (I2), with its shard locked; nil and unlocked if there is none.
func (p *pending) findCall(id uint64) *call {
	s := &p.shards[id%shardCount]
	index := id >> shardBits & (1<<slotBits - 1)
	s.mu.Lock()

	if index < uint64(len(s.slots)) {
		// The lock is kept if the call is found, as the caller will change its state.
		if c := s.slots[index]; c.state == live && c.id() == id {
			return c
		}
	}
	s.mu.Unlock()
	return nil
}

// claimCall takes the right to end the request of an id; nil if another goroutine has it.
func (p *pending) claimCall(id uint64) *call {
	c := p.findCall(id)
	if c == nil {
		return nil
	}
	c.shard.takeCall(c)
	c.shard.mu.Unlock()
	return c
}

// takeCall claims a live call. The shard is locked.
func (s *shard) takeCall(c *call) {
	s.unlinkCall(c)
	c.state = claimed
}

func bucketOf(expire int64) int64 { return expire / int64(tick) % wheelSize }

func (s *shard) linkCall(c *call) {
	// A doubly linked list by index: a call leaves its bucket without a search.
	head := &s.wheel[bucketOf(c.expire)]
	c.prev, c.next = nowhere, *head
	if *head != nowhere {
		s.slots[*head].prev = c.index
	}
	*head = c.index
}

func (s *shard) unlinkCall(c *call) {
	if c.prev != nowhere {
		s.slots[c.prev].next = c.next
	} else {
		s.wheel[bucketOf(c.expire)] = c.next
	}
	if c.next != nowhere {
		s.slots[c.next].prev = c.prev
	}
	c.prev, c.next = nowhere, nowhere
}

// claimExpired claims the calls that have expired and appends them to out.
func (s *shard) claimExpired(now int64, out []*call) []*call {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := now / int64(tick)

	// At most one turn of the wheel: after a longer pause every bucket is looked at once.
	for t := max(s.swept, to-wheelSize+1); t <= to; t++ {
		for i := s.wheel[t%wheelSize]; i != nowhere; {
			c := s.slots[i]
			i = c.next
			// A bucket also holds calls of later turns.
			if c.expire <= now {
				s.takeCall(c)
				out = append(out, c)
			}
		}
	}
	s.swept = to
	return out
}

// finishCall wakes the caller of a claimed call.
func (c *call) finishCall(reason model.Reason, now int64) {
	// The result is written before the send: the caller reads it without a lock.
	c.reason, c.end = reason, now
	c.done <- struct{}{}
}
