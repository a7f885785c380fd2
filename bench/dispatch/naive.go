package dispatch

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/core/engine"
)

// Naive is the result of a conventional dispatcher, under the same load and the same deferral rule: each request is
// an object that is queued by deadline and answered on its own channel. These dispatchers have no frontends,
// cancellation, lost backends or sub-clusters.
type Naive struct {
	Name       string  `json:"name"`
	RPS        float64 `json:"rps"`        // highest rate that passed; 0: none did
	Pushed     float64 `json:"pushed_rps"` // requests/s accepted when offered without a pause
	MissedPct  float64 `json:"missed_pct"` // of those, not sent in time
	AllocsPer  float64 `json:"allocs_per_req"`
	dispatcher func(Setting) naive
}

// naive takes requests and sends batches by itself. missed counts requests that no batch took in time.
type naive interface {
	enqueue(model uint32, deadline int64)
	missed() uint64
	stop()
}

var clock engine.Monotonic

func execOf(b int) int64 { return alpha*int64(b) + beta }

// gpuHeap is the free times of the GPUs.
type gpuHeap []int64

func (h gpuHeap) Len() int           { return len(h) }
func (h gpuHeap) Less(i, k int) bool { return h[i] < h[k] }
func (h gpuHeap) Swap(i, k int)      { h[i], h[k] = h[k], h[i] }
func (h *gpuHeap) Push(x any)        { *h = append(*h, x.(int64)) }
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

func (h requestHeap) Len() int           { return len(h) }
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

	d.gpus[0] = start + execOf(len(batch))
	time.AfterFunc(time.Duration(d.gpus[0]-int64(clock.Now())), func() { finishBatch(batch) })

	heap.Fix(&d.gpus, 0)
}

func finishBatch(batch []*request) {
	for _, r := range batch {
		r.answer <- true
	}
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

func (d *channels) serveModel(in chan *request) {
	defer d.done.Done()
	var queue []*request // in order of arrival, which is the order of deadlines here

	reply := make(chan int64)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()

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

// compareNaive measures both naive dispatchers on the setting and on its number of cores: goroutines would use all
// cores.
func compareNaive(ctx context.Context, set Setting, o Options, progress func(string)) ([]Naive, error) {
	all := []Naive{
		{Name: "single mutex, time.AfterFunc, container/heap", dispatcher: newMutexed},
		{Name: "channel and goroutine per model", dispatcher: newChannels},
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(set.Cores))

	for i := range all {
		n := &all[i]
		time.Sleep(rest)

		// Offer without a pause first, to know where to search …
		s := n.offerRate(set, 1e12, o.Each)
		n.Pushed = float64(s.Sent) / o.Each.Seconds()
		n.MissedPct = 100 * float64(s.Dropped) / float64(max(1, s.Sent))
		n.AllocsPer = float64(s.Mallocs) / float64(max(1, s.Sent))

		// … then find the highest rate at which it meets its deadlines.
		_, err := highestRate(ctx, 0.9*n.Pushed, o.Tries, func(rate float64) error {
			time.Sleep(rest)
			s := n.offerRate(set, rate, o.Each)
			s.Mallocs = 0 // they may allocate
			err := s.checkLimits()
			progress(fmt.Sprintf("%s: %5.2f M/s: %s", n.Name, rate/1e6, verdictOf(err)))
			if err == nil {
				n.RPS = max(n.RPS, rate)
			}
			return err
		})

		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// offerRate runs a new dispatcher at a rate for d, with as many generators as the setting has cores.
func (n *Naive) offerRate(set Setting, rate float64, d time.Duration) Sample {
	x := n.dispatcher(set)
	var sent atomic.Uint64
	var lag atomic.Int64

	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)

	var wg sync.WaitGroup
	for i := range set.Cores {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			start, gap := int64(clock.Now()), 1e9/rate*float64(set.Cores)
			k := 0

			// A rate of 1e12 means without a pause: no schedule can be late.
			for now := start; now < start+int64(d); now = int64(clock.Now()) {
				due := min(int(float64(now-start)/gap)-k, burst)
				if due > 0 && rate < 1e12 {
					if l := now - start - int64(float64(k)*gap); l > lag.Load() {
						lag.Store(l)
					}
				}
				if rate >= 1e12 {
					due = burst
				}

				if due <= 0 {
					runtime.Gosched() // the dispatcher's goroutines need the core
				}

				for range max(0, due) {
					at := start + int64(float64(k)*gap)
					if rate >= 1e12 {
						at = now
					}
					x.enqueue(uint32(rng.IntN(set.Models)), at+slo)
					k++
				}
			}
			sent.Add(uint64(k))
		}()
	}

	wg.Wait()
	runtime.ReadMemStats(&after)
	s := Sample{Rate: rate, Sent: sent.Load(), Dropped: x.missed(), LagMax: lag.Load(), Mallocs: after.Mallocs - before.Mallocs}
	x.stop()
	return s
}
