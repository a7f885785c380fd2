package backend

import (
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// A composed input starts with a table that locates each of the model's inputs: in the frontend's buffer, or on the
// backend that computed it, where it is read one-sidedly. An order with such inputs first reads all their tables, and
// plans the other reads when the last table has arrived (decision 0210).

// part is one input tensor of a composed input.
type part struct {
	tensor       int
	row          int   // row of slot
	source       *peer // nil: unreadable
	at           model.Descriptor
	group        *group
	lost, silent bool // written before group.over
}

// fetchTables reads the tables of an order's composed inputs.
func (o *order) fetchTables() {
	o.posted = o.gpu.backend.now()

	// Every composed item has a place for its table, even an unreadable one, so counting finds a table.
	size, n := wire.ComposedBytes(len(o.model.Inputs)), 0

	for i := range o.items {
		if o.items[i].composed {
			n++
		}
	}

	tables, err := o.gpu.backend.node.Alloc(n * size)
	if err != nil {
		o.gpu.backend.log.Warn("composed inputs are not read", "model", o.model.Name, "err", err)
		o.postReads() // their rows fail
		return
	}
	o.tables = tables

	// Tables of one frontend are read together, as inputs are. The places follow the order of the items.
	for i := range o.items {
		if o.hasTable(&o.items[i]) && o.items[i].group == nil {
			o.planTables(i)
		}
	}
	o.tablesDue.Store(int32(len(o.groups)) + 1)

	for _, g := range o.groups {
		g.source.readGroup(g)
	}
	o.noteTables()
}

// hasTable reports whether the table of an item can be read.
func (o *order) hasTable(it *item) bool {
	return it.composed && it.source != nil && !o.model.Varies && int(it.input.Length) >= wire.ComposedBytes(len(o.model.Inputs))
}

// planTables makes the group of the tables on the source of items[first].
func (o *order) planTables(first int) {
	g := o.addGroup(o.items[first].source)
	g.tables = true

	// Items before first are planned already, but their places count.
	size, place := wire.ComposedBytes(len(o.model.Inputs)), 0

	for i := range o.items {
		it := &o.items[i]
		if it.composed {
			place++
		}
		if i < first || it.source != g.source || !o.hasTable(it) {
			continue
		}
		it.group = g
		at := (place - 1) * size
		o.reads = append(o.reads, rdma.Read{Dst: o.tables.Bytes()[at : at+size], Src: rdma.Remote(it.input.Part(0, size))})
		o.rowOf = append(o.rowOf, int32(i))
	}
	g.to = len(o.reads)
}

// noteTables decrements tablesDue; the last call posts the reads of inputs.
func (o *order) noteTables() {
	if o.tablesDue.Add(-1) != 0 {
		return
	}

	var c wire.Composed
	size, place := wire.ComposedBytes(len(o.model.Inputs)), 0

	for i := range o.items {
		it := &o.items[i]
		if !it.composed {
			continue
		}
		table := o.tables.Bytes()[place*size : (place+1)*size]
		place++
		if it.group == nil || it.lost {
			continue
		}
		if err := c.DecodeComposed(table, len(o.model.Inputs)); err != nil {
			o.gpu.backend.log.Debug("composed input refused", "model", o.model.Name, "err", err)
			continue
		}

		// Ignore bits of outputs that the model does not have.
		it.hold, it.lease = c.Hold&(1<<len(o.model.Outputs)-1), time.Duration(c.Lease)*time.Millisecond
		o.addParts(i, c.Parts)
	}
	o.tables.Free()
	o.tables = nil

	// The inputs reuse the memory of the tables' groups and reads.
	for i := range o.items {
		o.items[i].group = nil
	}
	o.groups, o.reads, o.rowOf = o.groups[:0], o.reads[:0], o.rowOf[:0]
	o.postReads()
}

// addParts records where an item's inputs lie.
func (o *order) addParts(row int, all []model.Descriptor) {
	it := &o.items[row]
	it.from = int32(len(o.parts))

	for k, d := range all {
		p := part{tensor: k, row: row, at: d.InNode()}

		// A part without a node lies behind the table, in the same buffer.
		if node := d.Node(); node != 0 {
			p.source = o.gpu.backend.peers.findNode(node)
		} else {
			p.source = it.source
			p.at = it.input.Part(int(d.Offset), int(d.Length))
		}

		if int(p.at.Length) != o.model.Inputs[k].Bytes {
			p.source = nil // no valid length, so nothing to read
		}
		o.parts = append(o.parts, p)
	}
	it.to = int32(len(o.parts))
}

// planParts makes the groups of the parts of composed inputs, one per node.
func (o *order) planParts() {
	for first := range o.parts {
		if p := &o.parts[first]; p.group != nil || p.source == nil {
			continue
		}

		// All parts of one node are read in one chain, whatever their rows.
		g := o.addGroup(o.parts[first].source)
		g.parts = true
		for i := first; i < len(o.parts); i++ {
			p := &o.parts[i]
			if p.source != g.source {
				continue
			}
			p.group = g
			o.reads = append(o.reads, rdma.Read{Dst: o.slot.InputRow(o.model, p.tensor, p.row), Src: rdma.Remote(p.at)})
			o.rowOf = append(o.rowOf, int32(i))
		}
		g.to = len(o.reads)
	}
}

// arePartsThere reports whether every part of an item has arrived.
func (o *order) arePartsThere(it *item) bool {
	// A group's losses are final once it is over.
	for i := it.from; i < it.to; i++ {
		if p := &o.parts[i]; p.group == nil || !p.group.over.Load() || p.lost {
			return false
		}
	}

	return it.to > it.from
}

// isPartUnreached reports whether a composed item failed because some node could not be read from here, or not in
// time.
func (o *order) isPartUnreached(it *item) bool {
	for i := it.from; i < it.to; i++ {
		p := &o.parts[i]
		if p.source == nil || p.group == nil || !p.group.over.Load() || p.silent {
			return true
		}
	}

	return it.to == it.from
}
