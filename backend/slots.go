package backend

import (
	"context"
	"fmt"

	"downbeat.dev/backend/device"
	"downbeat.dev/rdma"
)

// The slots of a GPU are as large as its loaded models need. Before a model that needs larger ones is loaded, the
// slots are replaced one at a time, each when no batch has it; the GPU serves from the others meanwhile. When the
// remaining models need half or less, the slots are replaced by smaller ones (decision 0046).

// borrowSlot takes a free slot, waiting for one until ctx ends. The caller returns it with freeSlots.
func (g *gpu) borrowSlot(ctx context.Context) (*device.Slot, error) {
	return g.takeFree(ctx, func(*device.Slot) bool { return true })
}

// takeFree takes a free slot for which suits is true.
func (g *gpu) takeFree(ctx context.Context, suits func(*device.Slot) bool) (*device.Slot, error) {
	for {
		g.mu.Lock()
		for i, s := range g.slots {
			if suits(s) {
				g.slots = append(g.slots[:i], g.slots[i+1:]...)
				g.mu.Unlock()
				return s, nil
			}
		}

		g.mu.Unlock()

		select {
		case <-g.slotFreed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a free slot: %w", ctx.Err())
		}
	}
}

// allocateSlots allocates the slots before anything runs, in memory that the data plane can read into.
func (g *gpu) allocateSlots(size int) error {
	for i := range slotsEach {
		s, err := g.newSlot(i, size)
		if err != nil {
			return err
		}
		g.slots = append(g.slots, s)
	}
	g.slotBytes = size
	return nil
}

// newSlot allocates a slot and gives it to every executor.
func (g *gpu) newSlot(index, size int) (*device.Slot, error) {
	buf, err := g.backend.node.Alloc(device.PagedBytes(size))
	if err != nil {
		return nil, fmt.Errorf("%s: slot %d of %d bytes: %w", g.name, index, size, err)
	}

	s := device.NewSlot(index, device.Pages(buf.Bytes()))
	g.noteMemory(s, buf)
	for _, e := range g.executors {
		if err = e.AddSlot(s); err != nil {
			g.dropSlot(s)
			return nil, fmt.Errorf("%s: slot %d of %d bytes: %w", g.name, index, size, err)
		}
	}
	return s, nil
}

// dropSlot removes a slot from the executors and frees its memory.
func (g *gpu) dropSlot(s *device.Slot) {
	for _, e := range g.executors {
		if err := e.DropSlot(s); err != nil {
			g.backend.log.Error("slot not given back", "gpu", g.name, "slot", s.Index, "err", err)
		}
	}
	buf := g.buffers[s]
	g.noteMemory(s, nil)
	buf.Free()
}

// noteMemory records a slot's registered memory, for repliers; nil removes it.
func (g *gpu) noteMemory(s *device.Slot, buf *rdma.Buffer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if buf == nil {
		delete(g.buffers, s)
		return
	}
	g.buffers[s] = buf
}

// growSlots makes every slot at least size bytes large.
func (g *gpu) growSlots(ctx context.Context, size int) error {
	if size <= g.slotBytes {
		return nil
	}
	return g.replaceSlots(ctx, size)
}

// shrinkSlots makes the slots as small as the loaded models allow, if that is at most half their size.
func (g *gpu) shrinkSlots(ctx context.Context) error {
	need := device.Align
	for _, r := range *g.routes.Load() {
		if r != nil {
			need = max(need, r.model.Bytes())
		}
	}
	if need > g.slotBytes/2 {
		return nil
	}
	g.slotBytes = need // later loads must not count on more
	return g.replaceSlots(ctx, need)
}

// replaceSlots replaces the GPU's slots by slots of size bytes. After an error some are unchanged; the loaded models
// fit into all.
func (g *gpu) replaceSlots(ctx context.Context, size int) error {
	// List the old slots first, so that new ones are not replaced again.
	old := map[*device.Slot]*rdma.Buffer{}
	for s, b := range g.buffers {
		old[s] = b
	}
	for range len(old) {
		s, err := g.takeFree(ctx, func(s *device.Slot) bool { return old[s] != nil })
		if err != nil {
			return err
		}

		var fresh *device.Slot
		err = g.runAlone(ctx, func() (err error) {
			// The old slot is freed last: if there is no memory for another, batches keep it.
			if fresh, err = g.newSlot(s.Index, size); err == nil {
				g.dropSlot(s)
			}
			return err
		})
		if err != nil {
			g.freeSlots(s, nil)
			return err
		}
		delete(old, s)
		g.freeSlots(fresh, nil)
	}
	g.slotBytes = size
	return nil
}
