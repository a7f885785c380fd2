package dispatch

import (
	"container/heap"
	"sync"
	"time"
)

// mutexed has one mutex around everything, container/heap for the queues and the GPUs, and time.AfterFunc for every
// timed event: each request's end, each model's dispatch, each batch's completion.
type mutexed struct {
	mu     sync.Mutex
	models []mutexModel
	gpus   gpuHeap
	lost   uint64
	closed bool
}

type mutexModel struct {
	queue requestHeap
	timer *time.Timer
}

func newMutexed(set Setting) naive {
	return &mutexed{models: make([]mutexModel, set.Models), gpus: make(gpuHeap, set.GPUs)}
}

func (d *mutexed) enqueue(model uint32, deadline int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := &d.models[model]

	// The request's own timer ends it when not even a batch of one could serve it.
	now := int64(clock.Now())
	r := &request{deadline: deadline, answer: make(chan bool, 1)}
	r.timer = time.AfterFunc(time.Duration(deadline-execOf(1)-now), func() { d.expireRequest(m, r) })
	heap.Push(&m.queue, r)

	// The batch leaves when it is full, or when one more request would make the oldest late.
	if len(m.queue) >= batchMax {
		d.sendBatch(m)
		return
	}

	wait := time.Duration(m.queue[0].deadline - execOf(len(m.queue)+1) - now)
	if m.timer != nil {
		m.timer.Reset(wait)
		return
	}

	m.timer = time.AfterFunc(wait, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(m.queue) > 0 && !d.closed {
			d.sendBatch(m)
		}
	})
}

// expireRequest ends a queued request that can no longer meet its deadline.
func (d *mutexed) expireRequest(m *mutexModel, r *request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.at >= 0 {
		heap.Remove(&m.queue, r.at)
		d.lost++
		r.answer <- false
	}
}

// sendBatch forms a batch from the head of the queue. The caller holds mu.
func (d *mutexed) sendBatch(m *mutexModel) {
	// The GPU that is free first, at the top of the heap, takes the batch.
	start := max(int64(clock.Now()), d.gpus[0])
	var batch []*request
	for len(m.queue) > 0 && len(batch) < batchMax && m.queue[0].deadline >= start+execOf(len(batch)+1) {
		// Each additional request makes the batch longer for all, and the first has the earliest deadline.
		if len(batch) > 0 && batch[0].deadline < start+execOf(len(batch)+1) {
			break
		}
		r := heap.Pop(&m.queue).(*request)
		r.timer.Stop()
		batch = append(batch, r)
	}
	if len(batch) == 0 {
		return // the head's own timer ends it
	}

	// The GPU is busy until the batch ends, and moves down the heap.
	d.gpus[0] = start + execOf(len(batch))
	time.AfterFunc(time.Duration(d.gpus[0]-int64(clock.Now())), func() { finishBatch(batch) })
	heap.Fix(&d.gpus, 0)
}

func (d *mutexed) missed() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lost
}

func (d *mutexed) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true

	// Timers would keep every request's memory until they fire.
	for i := range d.models {
		m := &d.models[i]
		if m.timer != nil {
			m.timer.Stop()
		}
		for _, r := range m.queue {
			r.timer.Stop()
		}
	}
}
