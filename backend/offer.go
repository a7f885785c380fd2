package backend

import (
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// Held outputs stay in the slot where the executor wrote them. The answer locates them and other backends read them
// from there, one-sidedly. The slot serves no batch until the frontend has released every row, or the lease has
// ended. So only few slots of a GPU may be held at a time; other outputs are sent as usual (decision 0210).
const (
	heldFirst = 1               // slots of a GPU that may be held from the start
	heldExtra = 4               // additional slots that it may get, so that as many more may be held
	leaseMost = 5 * time.Second // upper limit of a frontend's lease
)

// rowKey identifies a held row in a frontend's release: the key of its slot's offer, and the offset of the row's
// first held output.
type rowKey struct {
	key    uint64
	offset uint32
}

// holdOutputs opens an order's slot to peers' reads, if some of its requests want that and there is room; else nil.
func (g *gpu) holdOutputs(o *order) *heldSlot {
	lease := time.Duration(0)
	rows := uint64(0)

	for i := range o.items {
		if it := &o.items[i]; it.hold != 0 && it.reason == model.ReasonNone && it.reply != nil {
			lease = max(lease, min(it.lease, leaseMost))
			rows++
		}
	}
	if rows == 0 || lease == 0 || len(o.model.Outputs) > wire.PartsMax || o.model.Varies || g.backend.peers.own.Load() == 0 {
		return nil
	}

	// Of the remaining slots, one runs while another is fetched.
	g.mu.Lock()
	room := g.heldNow < heldFirst+g.heldMore
	if room {
		g.heldNow++
	}
	memory, more := g.buffers[o.run], !room && g.heldMore < heldExtra && !g.growing
	g.growing = g.growing || more
	g.mu.Unlock()
	if more {
		g.backend.growHeld(g)
	}
	if !room {
		g.backend.holds.noteRefused(rows)
		return nil
	}

	// The executor has finished with the slot: the order gives it up here.
	o.recallRows()
	o.ahead.Store(false)
	o.held = true
	return &heldSlot{gpu: g, slot: o.run, memory: memory, remote: memory.Offer(), begin: device.PagesBegin(memory.Bytes()), lease: lease}
}

// growHeld gives a GPU one more slot, so that one more may be held. The caller has set g.growing.
func (b *Backend) growHeld(g *gpu) {
	// A closing backend makes no slots, as nobody would wait for this goroutine.
	b.holds.mu.Lock()
	closed := b.holds.closed
	if !closed {
		b.holds.wait.Add(1)
	}

	b.holds.mu.Unlock()
	if closed {
		return
	}

	go func() {
		defer b.holds.wait.Done()
		err := b.addSlot(g)
		g.mu.Lock()
		defer g.mu.Unlock()
		if err == nil {
			g.growing = false
			return
		}
		// There is no second try: if memory is short, others need it.
		b.log.Warn("no further slots for outputs that are held: some are sent instead", "gpu", g.name, "held_most", heldFirst+g.heldMore, "err", err)
	}()
}

// addSlot makes a slot like the others, between two batches.
func (b *Backend) addSlot(g *gpu) error {
	// Like a load it waits for its turn: one goroutine at a time changes slots.
	ctx := b.peers.ctx
	if err := b.beginPlacing(ctx); err != nil {
		return err
	}
	defer b.endPlacing()

	var fresh *device.Slot
	err := g.runAlone(ctx, func() (err error) {
		fresh, err = g.newSlot(slotsEach+g.heldMore, g.slotBytes)
		return err
	})
	if err != nil {
		return err
	}

	g.mu.Lock()
	g.heldMore++
	g.mu.Unlock()
	g.freeSlots(fresh, nil)
	return nil
}

// receiveMessage receives frontends' messages on the data plane: releases of held outputs.
func (b *Backend) receiveMessage(_ *rdma.Peer, msg []byte) {
	r, err := wire.DecodeRelease(msg)
	if err != nil {
		b.log.Debug("message refused", "err", err)
		return
	}
	b.holds.releaseRow(rowKey{r.Key, r.Offset})
}
