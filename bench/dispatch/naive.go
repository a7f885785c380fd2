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

// Naive is a dispatcher built the usual way, under the same load and the same deferral rule.
type Naive struct {
	Name       string  `json:"name"`
	RPS        float64 `json:"rps"`        // highest rate that passed; 0: none did
	Pushed     float64 `json:"pushed_rps"` // requests/s taken in when offered without a pause
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

// mutexed is one mutex around everything and one time.AfterFunc timer per model.
type mutexed struct {
	mu     sync.Mutex
	models []mutexModel
	gpus   gpuHeap
	lost   uint64
	closed bool
}

type mutexModel struct {
	queue []int64 // deadlines
	timer *time.Timer
}

func newMutexed(set Setting) naive {
	d := &mutexed{models: make([]mutexModel, set.Models), gpus: make(gpuHeap, set.GPUs)}
	return d
}

func (d *mutexed) enqueue(model uint32, deadline int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := &d.models[model]
	m.queue = append(m.queue, deadline)
	if len(m.queue) >= batchMax {
		d.send(m)
		return
	}
	wait := time.Duration(m.queue[0] - execOf(len(m.queue)+1) - int64(clock.Now()))
	if m.timer == nil {
		m.timer = time.AfterFunc(wait, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			if len(m.queue) > 0 && !d.closed {
				d.send(m)
			}
		})
		return
	}
	m.timer.Reset(wait)
}

// send forms a batch from the head of the queue. mu is held.
func (d *mutexed) send(m *mutexModel) {
	now := int64(clock.Now())
	start := max(now, d.gpus[0])
	n, lost := form(m.queue, start)
	d.lost += uint64(lost)
	if n > 0 {
		d.gpus[0] = start + execOf(n)
		heap.Fix(&d.gpus, 0)
	}
	m.queue = m.queue[:copy(m.queue, m.queue[lost+n:])]
}

// form returns the batch that starts at start: after how many lost heads, and how many requests.
func form(queue []int64, start int64) (n, lost int) {
	for lost < len(queue) && queue[lost] < start+execOf(1) {
		lost++
	}
	for lost+n < len(queue) && n < batchMax && queue[lost] >= start+execOf(n+1) {
		n++
	}
	return n, lost
}

func (d *mutexed) missed() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lost
}

func (d *mutexed) stop() {
	d.mu.Lock()
	d.closed = true
	for i := range d.models {
		if t := d.models[i].timer; t != nil {
			t.Stop()
		}
	}
	d.mu.Unlock()
}

// channels is a goroutine and a channel per model, and one goroutine that owns the GPUs.
type channels struct {
	models []chan int64
	gpus   chan chan int64 // a model asks for the first free GPU's time …
	taken  chan int64      // … and says until when it is taken
	lost   atomic.Uint64
	done   sync.WaitGroup
}

func newChannels(set Setting) naive {
	d := &channels{models: make([]chan int64, set.Models), gpus: make(chan chan int64), taken: make(chan int64)}
	free := make(gpuHeap, set.GPUs)
	go func() {
		for reply := range d.gpus {
			reply <- free[0]
			free[0] = <-d.taken
			heap.Fix(&free, 0)
		}
	}()
	for i := range d.models {
		d.models[i] = make(chan int64, 2*batchMax)
		d.done.Add(1)
		go d.serve(d.models[i])
	}
	return d
}

func (d *channels) serve(in chan int64) {
	defer d.done.Done()
	var queue []int64
	reply := make(chan int64)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case deadline, ok := <-in:
			if !ok {
				return
			}
			queue = append(queue, deadline)
			if len(queue) < batchMax {
				timer.Reset(time.Duration(queue[0] - execOf(len(queue)+1) - int64(clock.Now())))
				continue
			}
		case <-timer.C:
		}
		if len(queue) == 0 {
			continue
		}
		d.gpus <- reply
		free := <-reply
		start := max(int64(clock.Now()), free)
		n, lost := form(queue, start)
		d.lost.Add(uint64(lost))
		if n > 0 {
			free = start + execOf(n)
		}
		d.taken <- free
		queue = queue[:copy(queue, queue[lost+n:])]
	}
}

func (d *channels) enqueue(model uint32, deadline int64) { d.models[model] <- deadline }
func (d *channels) missed() uint64                       { return d.lost.Load() }

func (d *channels) stop() {
	for _, c := range d.models {
		close(c)
	}
	d.done.Wait()
	close(d.gpus)
}

// compare measures both naive dispatchers on the setting.
func compare(ctx context.Context, set Setting, o Options, progress func(string)) ([]Naive, error) {
	all := []Naive{
		{Name: "single mutex, time.AfterFunc", dispatcher: newMutexed},
		{Name: "channel and goroutine per model", dispatcher: newChannels},
	}
	for i := range all {
		n := &all[i]
		s := n.offer(set, 1e12, o.Each)
		n.Pushed = float64(s.Sent) / o.Each.Seconds()
		n.MissedPct = 100 * float64(s.Dropped) / float64(s.Sent)
		n.AllocsPer = float64(s.Mallocs) / float64(s.Sent)
		_, err := highest(ctx, n.Pushed, o.Tries, func(rate float64) error {
			s := n.offer(set, rate, o.Each)
			s.Mallocs = 0 // they may allocate
			err := s.passes()
			progress(fmt.Sprintf("%s: %5.2f M/s: %s", n.Name, rate/1e6, verdict(err)))
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

// offer runs a fresh dispatcher at a rate for d, with as many generators as the setting has cores.
func (n *Naive) offer(set Setting, rate float64, d time.Duration) Sample {
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
