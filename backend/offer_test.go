package backend

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"downbeat.dev/backend/emu"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// compose returns a composed input of one part that requests the first output to be held.
func (c *cluster) compose(input []byte, hold, lease uint32) model.Descriptor {
	table := wire.Composed{Hold: hold, Lease: lease, Parts: []model.Descriptor{{Offset: uint32(wire.ComposedBytes(1)), Length: uint32(len(input))}}}
	return c.front.offer(append(table.Append(nil), input...)).In(model.Composed)
}

// readHeld reads a held output, like a frontend or another backend.
func (c *cluster) readHeld(b joined, place model.Descriptor) ([]byte, error) {
	c.t.Helper()
	p, err := c.front.node.Connect(context.Background(), b.node.Addr())
	if err != nil {
		c.t.Fatal(err)
	}
	dst, err := c.front.node.Alloc(int(place.InNode().Length))
	if err != nil {
		c.t.Fatal(err)
	}
	defer dst.Free()
	ended := make(chan error, 1)
	p.Read([]rdma.Read{{Dst: dst.Bytes(), Src: rdma.Remote(place.InNode())}}, func(err error) { ended <- err })
	if err = <-ended; err != nil {
		return nil, err
	}
	return bytes.Clone(dst.Bytes()), nil
}

// TestHeldOutputsAreRead shows that held outputs can be read until they are released or their lease ends, and that
// their slot then serves batches again. Beyond its budget a backend sends outputs as usual, and it always sends
// outputs that nobody asked to hold.
func TestHeldOutputsAreRead(t *testing.T) {
	for _, provider := range []string{"local", "shm", "tcp", "verbs"} {
		t.Run(provider, func(t *testing.T) {
			c := newCluster(t, overProvider(t, provider))
			b := c.join("holder")
			input := slices.Repeat([]byte{5, 6, 7, 8}, 2048)
			want := emu.Pattern(b.model, input)

			// The backend holds nothing before the scheduler has numbered it.
			if !until(func() bool { return b.peers.own.Load() != 0 }) {
				t.Fatal("no number")
			}
			next := uint64(0)
			run := func(hold, lease uint32) answer {
				next++
				c.ask(next, "holder", c.compose(input, hold, lease))
				a := c.front.wait(next)
				if a.Reason != model.ReasonNone || !a.Held && !bytes.Equal(a.output, want) {
					t.Fatalf("reason %v, held %v, output % x", a.Reason, a.Held, a.output)
				}
				return a
			}
			if run(0, 1000).Held || run(2, 1000).Held {
				t.Error("held without being asked to, or a tensor that the model does not have")
			}

			a := run(1, 60_000)
			places, inline, err := wire.DecodeHeld(a.output, 1)
			if !a.Held || err != nil || len(inline) != 0 || places[0].Node() != b.peers.own.Load() {
				t.Fatalf("held %v, %+v, % x, %v", a.Held, places, inline, err)
			}
			if got, err := c.readHeld(b, places[0]); err != nil || !bytes.Equal(got, want) {
				t.Errorf("read % x, %v: want % x", got, err, want)
			}

			// The second one exceeds the budget, which the backend then raises by a slot at a time, up to its limit.
			grown := until(func() bool { run(1, 100); return heldMoreOf(b) == heldExtra })
			if !grown {
				t.Errorf("%d slots more for outputs that are held, want %d", heldMoreOf(b), heldExtra)
			}
			if held, refused, _ := b.holds.countRows(); held == 0 || refused == 0 {
				t.Errorf("%d held, %d refused: want some of both", held, refused)
			}

			// A release with a wrong key changes nothing; the right one ends the reading.
			b.receiveMessage(nil, wire.Release{Key: places[0].Key + 1, Offset: places[0].InNode().Offset}.Append(nil))
			b.receiveMessage(nil, []byte("no release"))
			if _, err := c.readHeld(b, places[0]); err != nil {
				t.Errorf("not released: %v", err)
			}
			for range 2 {
				b.receiveMessage(nil, wire.Release{Key: places[0].Key, Offset: places[0].InNode().Offset}.Append(nil))
			}
			if !until(func() bool { _, err := c.readHeld(b, places[0]); return errors.Is(err, rdma.ErrNotOffered) }) {
				t.Error("released, and still readable")
			}

			// Nobody releases the others, so their leases end and all slots are free again.
			if !until(func() bool { return freeSlotsOf(b) == slotsEach+heldExtra }) {
				t.Errorf("%d slots are free, want %d", freeSlotsOf(b), slotsEach+heldExtra)
			}
			if _, _, expired := b.holds.countRows(); expired == 0 {
				t.Error("no lease has ended")
			}
		})
	}
}

func heldMoreOf(b joined) int {
	g := b.gpus[0]
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.heldMore
}

func freeSlotsOf(b joined) int {
	g := b.gpus[0]
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.slots)
}

// TestComposedInputsThatMakeNoSense shows that invalid composed inputs end alone, each with its reason.
func TestComposedInputsThatMakeNoSense(t *testing.T) {
	c := newCluster(t, overProvider(t, "local"))
	c.join("m")
	input := make([]byte, 8192)
	part := func(offset, length uint32, key uint64) model.Descriptor {
		table := wire.Composed{Parts: []model.Descriptor{{Key: key, Offset: offset, Length: length}}}
		return c.front.offer(append(table.Append(nil), input...)).In(model.Composed)
	}
	for name, d := range map[string]model.Descriptor{
		"no table":             c.front.offer(input).In(model.Composed),
		"shorter than a table": c.front.offer([]byte{1, 2, 3}).In(model.Composed),
		"a part of wrong size": part(uint32(wire.ComposedBytes(1)), 8191, 0),
		"a part beyond it":     part(64<<20-1, 8192, 0),
		"an unknown node":      c.front.offer((&wire.Composed{Parts: []model.Descriptor{c.front.offer(input).In(77)}}).Append(nil)).In(model.Composed),
	} {
		id := uint64(len(name))
		c.ask(id, "m", d)
		c.checkEnd(name, id, model.InputUnavailable)
	}

	// The next request is served: nothing of the earlier ones was kept.
	c.ask(1000, "m", c.compose(input, 0, 0))
	if a := c.front.wait(1000); a.Reason != model.ReasonNone {
		t.Errorf("after them: %v", a.Reason)
	}
}
