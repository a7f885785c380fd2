package backend

import (
	"context"
	"fmt"

	"downbeat.dev/backend/device"
	"downbeat.dev/rdma"
)

// The slots of a GPU are as large as its loaded models need. A model that needs larger ones has them replaced before it
// is loaded, one at a time, each when no batch has it: the GPU serves from the others meanwhile. When models that are
// left need half or less, the slots are replaced by smaller ones (decision 0046).

// borrowSlot takes a free slot, waiting for one until ctx ends. The caller gives it back with free.
func (g *gpu) borrowSlot(ctx context.Context) (*device.Slot, error) {
	return g.takeFree(ctx, func(*device.Slot) bool { return true })
}

// takeFree takes a free slot that suits.
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

// allocateSlots makes the slots of memory that the data plane can read into, before anything runs.
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

// dropSlot takes a slot from the executors and frees its memory.
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

// noteMemory notes where a slot's memory comes from; nil: there is none any more. Whoever replies looks it up.
func (g *gpu) noteMemory(s *device.Slot, buf *rdma.Buffer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if buf == nil {
		delete(g.buffers, s)
		return
	}
	g.buffers[s] = buf
}

// growSlots sees that every slot has size bytes at least.
func (g *gpu) growSlots(ctx context.Context, size int) error {
	if size <= g.slotBytes {
		return nil
	}
	return g.replaceSlots(ctx, size)
}

// shrinkSlots makes the slots as small as the loaded models allow, if that is half of what they have or less.
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
	g.slotBytes = need // what is loaded from now on must not count on more
	return g.replaceSlots(ctx, need)
}

// replaceSlots gives the GPU slots of size bytes instead of those that it has. After an error some are as they were; the
// loaded models fit into all.
func (g *gpu) replaceSlots(ctx context.Context, size int) error {
	// Slots made here must not be replaced again, so that the old ones are listed first.
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
			// The old one goes last: its memory is there for the batches that come if there is not enough for another.
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
