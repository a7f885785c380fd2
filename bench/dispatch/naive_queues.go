package dispatch

import "time"

// gpuHeap is the free times of the GPUs.
type gpuHeap []int64

func (h gpuHeap) Len() int { return len(h) }

func (h gpuHeap) Less(i, k int) bool { return h[i] < h[k] }

func (h gpuHeap) Swap(i, k int) { h[i], h[k] = h[k], h[i] }

func (h *gpuHeap) Push(x any) { *h = append(*h, x.(int64)) }

func (h *gpuHeap) Pop() any {
	x := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return x
}

// request is a conventional server's request: an object with a timer that ends it when it can no longer meet its
// deadline, and a channel for its answer.
type request struct {
	deadline int64
	at       int // index in its queue, -1: not queued
	timer    *time.Timer
	answer   chan bool
}

// requestHeap is a model's queue in order of deadline.
type requestHeap []*request

func (h requestHeap) Len() int { return len(h) }

func (h requestHeap) Less(i, k int) bool { return h[i].deadline < h[k].deadline }

func (h requestHeap) Swap(i, k int) {
	h[i], h[k] = h[k], h[i]
	h[i].at, h[k].at = i, k
}

func (h *requestHeap) Push(x any) {
	r := x.(*request)
	r.at = len(*h)
	*h = append(*h, r)
}

func (h *requestHeap) Pop() any {
	r := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	r.at = -1
	return r
}

// finishBatch answers a batch's requests.
func finishBatch(batch []*request) {
	for _, r := range batch {
		r.answer <- true
	}
}
