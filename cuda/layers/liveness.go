package layers

import (
	"cmp"
	"slices"
)

const bufferAlign = 256

// placeActivations gives every activation an offset such that no two that live at the same time overlap (L1). It
// places the largest first, each at the lowest offset that is free during its lifetime, and returns the bytes needed.
func placeActivations(buffers []Buffer) (total int64) {
	var order []int
	for i := range buffers {
		if buffers[i].Kind == Activation && buffers[i].Last >= 0 {
			order = append(order, i)
		}
	}

	// Place large buffers first, because small ones fit into the gaps.
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(buffers[b].Bytes, buffers[a].Bytes), cmp.Compare(buffers[a].First, buffers[b].First), cmp.Compare(a, b))
	})

	var placed []int // by offset
	for _, i := range order {
		b := &buffers[i]
		size := (b.Bytes + bufferAlign - 1) &^ (bufferAlign - 1)

		at := int64(0)

		// Find the first gap between buffers that live at the same time.
		for _, j := range placed {
			o := &buffers[j]
			if o.First > b.Last || b.First > o.Last {
				continue
			}
			if at+size <= o.Offset {
				break
			}
			at = max(at, o.Offset+(o.Bytes+bufferAlign-1)&^(bufferAlign-1))
		}

		b.Offset = at
		total = max(total, at+size)

		// Keep the order by offset, so that one pass finds the first gap.
		where, _ := slices.BinarySearchFunc(placed, at, func(j int, at int64) int { return cmp.Compare(buffers[j].Offset, at) })
		placed = slices.Insert(placed, where, i)
	}
	return total
}

// findLifetimes finds each activation's first and last layer.
func (p *Plan) findLifetimes() {
	for i := range p.Buffers {
		p.Buffers[i].First, p.Buffers[i].Last = len(p.Layers), -1
	}

	for l := range p.Layers {
		for s := range p.Layers[l].Steps {
			p.Layers[l].Steps[s].eachBuffer(func(b int) {
				p.Buffers[b].First = min(p.Buffers[b].First, l)
				p.Buffers[b].Last = max(p.Buffers[b].Last, l)
			})
		}
	}
}
