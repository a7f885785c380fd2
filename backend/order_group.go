package backend

import (
	"errors"
	"sync/atomic"

	"downbeat.dev/backend/device"
	"downbeat.dev/rdma"
)

// group is the set of an order's reads from one node.
type group struct {
	o        *order
	source   *peer
	from, to int // in o.reads
	chains   atomic.Int32
	parts    bool        // the reads are parts of composed inputs
	tables   bool        // the reads are tables of composed inputs
	over     atomic.Bool // all reads have ended
	done     func(error) // bound once, for the first chain
	each     func(int)   // likewise
}

// addGroup makes an empty group of reads from a source.
func (o *order) addGroup(source *peer) *group {
	n := len(o.groups)

	// Groups keep their memory and their callbacks from one batch to the next.
	if n < cap(o.groups) && o.groups[:n+1][n] != nil {
		o.groups = o.groups[:n+1]
	} else {
		g := &group{o: o}
		g.done, g.each = g.finishOne, func(i int) { g.noteLanded(g.from + i) }
		o.groups = append(o.groups, g)
	}

	g := o.groups[n]
	g.source, g.from, g.parts, g.tables = source, len(o.reads), false, false
	g.over.Store(false)
	return g
}

// planGroup makes the group of the source of items[first].
func (o *order) planGroup(first int) {
	g := o.addGroup(o.items[first].source)
	for i := first; i < len(o.items); i++ {
		it := &o.items[i]

		// All rows of one source are read together, with one post and one end.
		if it.source != g.source || !o.isWhole(it) {
			continue
		}
		it.group, it.read = g, int32(len(o.reads))

		if o.model.Varies {
			dst, _ := device.SetPacked(o.slot.InputRow(o.model, 0, i), int(it.input.Length)) // the row has this length
			o.reads = append(o.reads, rdma.Read{Dst: dst, Src: rdma.Remote(it.input)})
			o.rowOf = append(o.rowOf, int32(i))
			continue
		}

		// Each input has its own place in the slot, so that a row takes one read per input.
		for k := range o.model.Inputs {
			t := &o.model.Inputs[k]
			o.reads = append(o.reads, rdma.Read{Dst: o.slot.InputRow(o.model, k, i),
				Src: rdma.Remote(it.input.Part(t.Offset, t.Bytes))})
			o.rowOf = append(o.rowOf, int32(i))
		}
	}

	g.to = len(o.reads)
}

// postChains reads the group's chains from p.
func (g *group) postChains(p *rdma.Peer) {
	if g.to-g.from <= rdma.ChainMax {
		g.chains.Store(1)
		g.readChain(p, g.o.reads[g.from:g.to], g.each, g.done)
		return
	}

	// More reads than a chain's limit go in several chains, each with its own end.
	n := (g.to - g.from + rdma.ChainMax - 1) / rdma.ChainMax
	g.chains.Store(int32(n))
	for from := g.from; from < g.to; from += rdma.ChainMax {
		to := min(from+rdma.ChainMax, g.to)
		g.readChain(p, g.o.reads[from:to], func(i int) { g.noteLanded(from + i) }, func(err error) { g.endReads(from, to, err) })
	}
}

// readChain posts one chain. An executor that takes no rows early is told only of the chain's end.
func (g *group) readChain(p *rdma.Peer, chain []rdma.Read, each func(int), done func(error)) {
	if g.o.route.can.Early == nil || g.parts || g.tables {
		each = nil
	}
	p.ReadWithin(max(g.o.useful-g.o.posted, readMin), chain, each, done)
}

// noteLanded is called when reads[i] has landed, before its chain has ended, and forwards it. Short reads are
// reported only by the chain's end, and copied with the batch. If the end reports that the bytes are invalid, the row
// is left out and its copy is forgotten (gpu.gatherRows).
func (g *group) noteLanded(i int) {
	o := g.o
	row := o.rowOf[i]
	it := &o.items[row]
	it.told = true
	o.ahead.Store(true)
	o.route.can.Early.Arrived(o.model, o.slot, i-int(it.read), int(row), int(row)+1)
}

// finishOne is the end of a group that was read in one chain, or could not be read at all.
func (g *group) finishOne(err error) { g.endReads(g.from, g.to, err) }

// endReads records the failures of reads[from:to]. The data plane calls it once per chain.
func (g *group) endReads(from, to int, err error) {
	o := g.o

	// A chain names the reads that failed; if the peer was lost, all did.
	if err != nil {
		var c *rdma.ChainError
		if errors.As(err, &c) {
			for _, i := range c.Failed {
				g.markLost(o.rowOf[from+i], false)
			}
		} else {
			for _, i := range o.rowOf[from:to] {
				g.markLost(i, true)
			}
			g.source.dropLost(err)
		}
	}

	g.noteEnd(err)

	// The rows' state is final before over is set: readers that see over rely on it.
	if g.chains.Add(-1) != 0 {
		return
	}
	if g.tables {
		g.over.Store(true)
		o.noteTables()
		return
	}
	g.forwardRows()
	g.over.Store(true)
	o.noteArrived()
}

// markLost records that a read failed: of a row, of one of its parts, or of its table.
func (g *group) markLost(i int32, silent bool) {
	if g.parts {
		g.o.parts[i].lost, g.o.parts[i].silent = true, silent
		return
	}
	it := &g.o.items[i]
	it.lost, it.silent = true, it.silent || silent
}

// forwardRows copies the rows that the group has brought, and has not forwarded yet, to the GPU, while others are
// still on their way or the previous batch runs.
func (g *group) forwardRows() {
	o, e := g.o, g.o.route.can.Early
	if e == nil {
		return
	}
	here := func(i int) bool { return o.items[i].group == g && !o.items[i].lost && !o.items[i].told }
	for i := 0; i < len(o.items); i++ {
		if !here(i) {
			continue
		}

		// Adjacent rows go together, so that the device copies them in one piece.
		from := i
		for i < len(o.items) && here(i) {
			i++
		}
		o.ahead.Store(true)
		e.Arrived(o.model, o.slot, device.AllInputs, from, i)
	}
}
