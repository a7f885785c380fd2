package sched

// heap is an indexed 4-ary min-heap of (key, id): ids are small and dense, each at most once.
// Ties go to the smaller id, so the order is total.
type heap struct {
	item []heapItem
	pos  []int32 // pos[id] = index+1 in item, 0: absent
}

type heapItem struct {
	key Time
	id  uint32
}

func (a heapItem) before(b heapItem) bool {
	return a.key < b.key || a.key == b.key && a.id < b.id
}

// grow makes room for ids 0…n-1.
func (h *heap) grow(n int) {
	for len(h.pos) < n {
		h.pos = append(h.pos, 0)
	}
}

func (h *heap) len() int { return len(h.item) }

// top returns the least item; the heap must not be empty.
func (h *heap) top() heapItem { return h.item[0] }

// set inserts id with key, or moves it to key.
func (h *heap) set(id uint32, key Time) {
	it := heapItem{key, id}
	if p := h.pos[id]; p != 0 {
		i := int(p - 1)
		if it.before(h.item[i]) {
			h.up(i, it)
		} else {
			h.down(i, it)
		}
		return
	}
	h.item = append(h.item, it)
	h.up(len(h.item)-1, it)
}

// remove takes id out; absent ids are ignored.
func (h *heap) remove(id uint32) {
	p := h.pos[id]
	if p == 0 {
		return
	}
	h.pos[id] = 0
	n := len(h.item) - 1
	last := h.item[n]
	h.item = h.item[:n]
	if i := int(p - 1); i < n {
		if i > 0 && last.before(h.item[(i-1)>>2]) {
			h.up(i, last)
		} else {
			h.down(i, last)
		}
	}
}

func (h *heap) up(i int, it heapItem) {
	for i > 0 {
		p := (i - 1) >> 2
		if !it.before(h.item[p]) {
			break
		}
		h.put(i, h.item[p])
		i = p
	}
	h.put(i, it)
}

func (h *heap) down(i int, it heapItem) {
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
		h.put(i, h.item[best])
		i = best
	}
	h.put(i, it)
}

func (h *heap) put(i int, it heapItem) {
	h.item[i] = it
	h.pos[it.id] = int32(i + 1)
}
