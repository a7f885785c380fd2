package sched

// heap is an indexed 4-ary min-heap of candidates by (key, model), each model at most once. A candidate's position is
// in its rival, so any candidate can move or go.
type heap struct {
	item []heapItem
}

// heapItem is an entry of a heap: when it is due, and the number of what is due.
type heapItem struct {
	key Time
	id  uint32
}

// before orders items by their keys. Equal keys go by the number, so that the order is total.
func (a heapItem) before(b heapItem) bool {
	return a.key < b.key || a.key == b.key && a.id < b.id
}

func (h *heap) len() int { return len(h.item) }

// top returns the least item; the heap must not be empty.
func (h *heap) top() heapItem { return h.item[0] }

// set inserts id with key, or moves it to key.
func (h *heap) set(all []rival, id uint32, key Time) {
	it := heapItem{key, id}
	if p := all[id].pos; p != 0 {
		i := int(p - 1)
		if it.before(h.item[i]) {
			h.up(all, i, it)
		} else {
			h.down(all, i, it)
		}
		return
	}
	h.item = append(h.item, it)
	h.up(all, len(h.item)-1, it)
}

// remove removes id; absent ids are ignored.
func (h *heap) remove(all []rival, id uint32) {
	p := all[id].pos
	if p == 0 {
		return
	}
	all[id].pos = 0
	n := len(h.item) - 1
	last := h.item[n]
	h.item = h.item[:n]
	if i := int(p - 1); i < n {
		if i > 0 && last.before(h.item[(i-1)>>2]) {
			h.up(all, i, last)
		} else {
			h.down(all, i, last)
		}
	}
}

func (h *heap) up(all []rival, i int, it heapItem) {
	for i > 0 {
		p := (i - 1) >> 2
		if !it.before(h.item[p]) {
			break
		}
		h.put(all, i, h.item[p])
		i = p
	}
	h.put(all, i, it)
}

func (h *heap) down(all []rival, i int, it heapItem) {
	n := len(h.item)
	for {
		c := i<<2 + 1
		if c >= n {
			break
		}

		best := c
		for k := c + 1; k < c+4 && k < n; k++ {
			if h.item[k].before(h.item[best]) {
				best = k
			}
		}

		if !h.item[best].before(it) {
			break
		}
		h.put(all, i, h.item[best])
		i = best
	}
	h.put(all, i, it)
}

func (h *heap) put(all []rival, i int, it heapItem) {
	h.item[i] = it
	all[it.id].pos = int32(i + 1)
}
