package backend

import (
	"errors"
	"fmt"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/wire"
)

// acceptBatch accepts a batch, and starts to fetch it if a slot is free. Only the link's goroutine calls it. The
// error says why it is refused: its model is not loaded here (any more), or the GPU has too many orders.
func (g *gpu) acceptBatch(e *wire.Execute, now time.Duration, session uint64) error {
	o, err := g.newOrderFor(e, now, session)
	if err == nil {
		g.startOrder(o)
	}
	return err
}

// newOrderFor makes an order for a batch.
func (g *gpu) newOrderFor(e *wire.Execute, now time.Duration, session uint64) (*order, error) {
	r := g.routeOf(e.Model)
	if r == nil {
		return nil, errNotLoaded
	}

	// Orders are reused: their number bounds the batches that the GPU may have.
	g.mu.Lock()
	n := len(g.orders)
	switch {
	case r.leaving != nil:
		g.mu.Unlock()
		return nil, errNotLoaded
	case n == 0:
		g.mu.Unlock()
		return nil, errOrders
	}

	// An unload waits until live is 0, so it is incremented under the lock that read leaving.
	r.live++
	o := g.orders[n-1]
	g.orders = g.orders[:n-1]
	g.mu.Unlock()

	o.resetTo(g.backend, r, e, now, session)
	return o, nil
}

// startOrder fetches an order's inputs as soon as there is a slot, and queues it for the GPU.
func (g *gpu) startOrder(o *order) {
	g.mu.Lock()
	g.line = append(g.line, o)
	next := g.nextFetch()
	g.mu.Unlock()

	// Reads are posted without the lock, because their ends take it.
	if next != nil {
		next.fetchInputs()
	}

	g.mu.Lock()
	g.due = append(g.due, o) // last, so that the GPU wakes to rows that are there
	g.more.Signal()
	g.mu.Unlock()
}

// Reasons for refusing an order.
var (
	errNotLoaded = errors.New("the model is not loaded on this GPU")
	errOrders    = fmt.Errorf("the GPU has %d batches", ordersMax)
)

// nextFetch gives the first order in line a slot, if there are both. g.mu is held.
func (g *gpu) nextFetch() *order {
	if len(g.line) == 0 || len(g.slots) == 0 {
		return nil
	}
	o := g.line[0]
	g.line = append(g.line[:0], g.line[1:]...)

	n := len(g.slots)
	o.slot = g.slots[n-1]
	g.slots = g.slots[:n-1]
	return o
}

// freeSlots frees slots and starts the fetches that waited for them.
func (g *gpu) freeSlots(a, b *device.Slot) {
	g.mu.Lock()
	if a != nil {
		g.slots = append(g.slots, a)
	}
	if b != nil && b != a {
		g.slots = append(g.slots, b)
	}

	// Two slots may have become free, and each lets one order read.
	first, second := g.nextFetch(), g.nextFetch()
	g.mu.Unlock()
	if first != nil {
		first.fetchInputs()
	}
	if second != nil {
		second.fetchInputs()
	}
	putToken(g.slotFreed)
}

// recycleOrder takes back an unused order.
func (g *gpu) recycleOrder(o *order) {
	o.recallRows()

	// Once in the list the order may become another batch: read its slots before.
	slot, run := o.slot, o.run
	if o.held { // freed by freeHeldSlot
		if slot == run {
			slot = nil
		}
		run = nil
	}

	g.mu.Lock()
	o.route.leaveRoute()
	g.orders = append(g.orders, o)
	g.mu.Unlock()
	g.freeSlots(slot, run)
	g.backend.live.Add(-1)
}
