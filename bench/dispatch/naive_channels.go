package dispatch

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"
)

// channels has a goroutine and a channel per model, and one goroutine that owns the GPUs.
type channels struct {
	models []chan *request
	gpus   chan chan int64 // a model asks for the first free GPU's time …
	taken  chan int64      // … and reports until when it uses the GPU
	lost   atomic.Uint64
	done   sync.WaitGroup
}

func newChannels(set Setting) naive {
	d := &channels{models: make([]chan *request, set.Models), gpus: make(chan chan int64), taken: make(chan int64)}

	free := make(gpuHeap, set.GPUs)
	go func() {
		// One model at a time holds the answer: no other can take the same GPU before the first one reports.
		for reply := range d.gpus {
			reply <- free[0]
			free[0] = <-d.taken
			heap.Fix(&free, 0)
		}
	}()

	for i := range d.models {
		d.models[i] = make(chan *request, 2*batchMax)
		d.done.Add(1)
		go d.serveModel(d.models[i])
	}
	return d
}

// serveModel is a model's goroutine: it collects requests until the batch is full or its time has come.
func (d *channels) serveModel(in chan *request) {
	defer d.done.Done()
	var queue []*request // in order of arrival, which is the order of deadlines here

	reply := make(chan int64)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()

	// Each arrival moves the batch's time: one more request makes it longer, so it must leave earlier.
	for {
		select {
		case r, ok := <-in:
			if !ok {
				return
			}
			queue = append(queue, r)
			if len(queue) < batchMax {
				timer.Reset(time.Duration(queue[0].deadline - execOf(len(queue)+1) - int64(clock.Now())))
				continue
			}
		case <-timer.C:
		}

		if len(queue) > 0 {
			queue = d.sendBatch(queue, reply)
		}
	}
}

// sendBatch sends the head of the queue to a GPU and returns the rest.
func (d *channels) sendBatch(queue []*request, reply chan int64) []*request {
	// Ask for the first free GPU; no other model gets an answer until this one reports through taken.
	d.gpus <- reply
	free := <-reply
	start := max(int64(clock.Now()), free)

	// Requests at the head that even a batch of one cannot serve are lost; then as many follow as the oldest
	// remaining one allows.
	lost, n := 0, 0
	for lost < len(queue) && queue[lost].deadline < start+execOf(1) {
		queue[lost].answer <- false
		lost++
	}
	for lost+n < len(queue) && n < batchMax && queue[lost].deadline >= start+execOf(n+1) {
		n++
	}

	d.lost.Add(uint64(lost))

	// The rest of the queue is moved to its front below, so the batch needs a copy.
	if n > 0 {
		free = start + execOf(n)
		batch := append([]*request(nil), queue[lost:lost+n]...)
		time.AfterFunc(time.Duration(free-int64(clock.Now())), func() { finishBatch(batch) })
	}

	d.taken <- free
	return queue[:copy(queue, queue[lost+n:])]
}

func (d *channels) enqueue(model uint32, deadline int64) {
	d.models[model] <- &request{deadline: deadline, answer: make(chan bool, 1)}
}

func (d *channels) missed() uint64 { return d.lost.Load() }

func (d *channels) stop() {
	// End the models first, since they send to the GPUs' goroutine.
	for _, c := range d.models {
		close(c)
	}
	d.done.Wait()
	close(d.gpus)
}
