package backend

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/backend/emu"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// valve passes bytes between its own listener and another address, until it is shut.
type valve struct {
	ln   net.Listener
	to   atomic.Pointer[string]
	mu   sync.Mutex
	cond *sync.Cond
	shut bool // guarded by mu
}

func newValve(t *testing.T) *valve {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v := &valve{ln: ln}
	v.cond = sync.NewCond(&v.mu)
	var wait sync.WaitGroup
	wait.Add(1)
	go func() {
		defer wait.Done()
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", *v.to.Load())
			if err != nil {
				in.Close()
				continue
			}
			wait.Add(2)
			go func() { defer wait.Done(); v.pass(in, out) }()
			go func() { defer wait.Done(); v.pass(out, in) }()
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		v.turn(false)
		wait.Wait()
	})
	return v
}

func (v *valve) pass(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		v.mu.Lock()
		for v.shut {
			v.cond.Wait()
		}
		v.mu.Unlock()
		if err != nil {
			return
		}
		if _, err := to.Write(b[:n]); err != nil {
			io.Copy(io.Discard, from)
			return
		}
	}
}

func (v *valve) turn(shut bool) {
	v.mu.Lock()
	v.shut = shut
	v.mu.Unlock()
	v.cond.Broadcast()
}

// TestStalledFrontend: one frontend of a batch stops answering reads. The others are served in time from another
// slot, and the late bytes of the stalled frontend affect nobody. Its requests have seconds left when their batch
// must begin, so they are left to the scheduler: ending them here lost requests when a leader died.
func TestStalledFrontend(t *testing.T) {
	v := newValve(t)
	r := newRig(t, rigOptions{alpha: time.Millisecond, batchMax: 4, front: rdma.Config{Providers: []string{"tcp"}, Stall: 1500 * time.Millisecond}})
	addr := freePort(t) // the node announces the valve's address instead of its own
	v.to.Store(&addr)
	slow := newStub(t, rdma.Config{Providers: []string{"tcp"}, Listen: addr, Advertise: v.ln.Addr().String(), Stall: 1500 * time.Millisecond})
	r.meetFrontend(wire.Peer{Frontend: 2, DataAddr: slow.node.Addr()})
	batch := func(id uint64) (wire.Execute, map[uint64][]byte) {
		e, inputs := r.batch(id, 4)
		for _, i := range []int{0, 2} {
			e.Items[i].Frontend, e.Items[i].Input = 2, slow.offer(inputs[e.Items[i].ID])
		}
		return e, inputs
	}
	e, inputs := batch(1) // connects
	r.Execute([]wire.Execute{e})
	r.checkOutput(e.Items[1].ID, inputs[e.Items[1].ID])
	r.sched.wait(1)
	if a := slow.wait(e.Items[0].ID); a.Reason != 0 {
		t.Fatalf("the frontend behind the valve got %v", a.Reason)
	}
	v.turn(true)
	e, inputs = batch(2)
	e.Latest = int64(500 * time.Millisecond)
	r.Execute([]wire.Execute{e})
	u := model.InputUnavailable
	r.checkFailures(2, wire.ItemFailure{Index: 0, Reason: u, Untold: true}, wire.ItemFailure{Index: 2, Reason: u, Untold: true})
	for _, i := range []int{1, 3} {
		r.checkOutput(e.Items[i].ID, inputs[e.Items[i].ID])
	}
	v.turn(false)
	e, inputs = r.batch(3, 4)
	r.Execute([]wire.Execute{e})
	for id, in := range inputs {
		r.checkOutput(id, in)
	}
}

// freePort returns an address on which nobody listens, and which hardly any other process of this host binds.
func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// TestEveryRequestIsAccountedFor is invariant B1 under random faults: wrong descriptors, failing and slow GPUs, short
// deadlines, more batches than there is room for.
func TestEveryRequestIsAccountedFor(t *testing.T) {
	r := newRig(t, rigOptions{gpus: 3, alpha: 50 * time.Microsecond, beta: 200 * time.Microsecond, batchMax: 8})
	random := rand.New(rand.NewPCG(7, 7))
	type sent struct {
		e      wire.Execute
		inputs map[uint64][]byte
	}
	var all []sent
	for id := range uint64(300) {
		e, inputs := r.batch(id, 1+random.IntN(8))
		e.GPU = uint32(random.IntN(3))
		e.Start = random.Int64N(int64(2 * time.Millisecond))
		for i := range e.Items {
			switch random.IntN(12) {
			case 0:
				e.Items[i].Input.Key++
			case 1:
				e.Items[i].Input.Length++
			case 2:
				e.Items[i].Budget = random.Uint32N(us(time.Millisecond))
			}
		}
		all = append(all, sent{e, inputs})
	}
	for i, s := range all {
		switch random.IntN(10) {
		case 0:
			r.emus[random.IntN(3)].Inject(emu.Failing)
		case 1:
			r.emus[random.IntN(3)].Inject(emu.Fault{Slow: 3})
		default:
			r.emus[random.IntN(3)].Inject(emu.Fault{})
		}
		r.Execute([]wire.Execute{s.e})
		if i%8 == 0 {
			time.Sleep(3 * time.Millisecond)
		}
	}
	outputs, reasons, untold := 0, 0, 0
	for _, s := range all {
		d, _ := r.sched.wait(s.e.Batch)
		failed := map[uint32]wire.ItemFailure{}
		for _, f := range d.Failures {
			failed[f.Index] = f
		}
		for i, it := range s.e.Items {
			if f, ok := failed[uint32(i)]; ok && f.Untold { // the count of answers shows that nobody was told
				untold++
			} else if ok {
				r.checkReason(it.ID, f.Reason)
				reasons++
			} else {
				r.checkOutput(it.ID, s.inputs[it.ID])
				outputs++
			}
		}
	}
	r.front.mu.Lock()
	defer r.front.mu.Unlock()
	if len(r.front.answers) != outputs+reasons || r.front.twice != 0 {
		t.Errorf("%d answers for %d outputs and %d reasons, %d twice", len(r.front.answers), outputs, reasons, r.front.twice)
	}
	if outputs == 0 || reasons == 0 || untold == 0 {
		t.Errorf("%d outputs, %d reasons, %d left to the scheduler: the test tests nothing", outputs, reasons, untold)
	}
}
