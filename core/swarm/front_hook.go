package swarm

import (
	"math/rand/v2"

	"downbeat.dev/core/limits"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// A call may have a hook that prepares its input, as in package frontend: the scheduler is told when the input is
// expected, and that it is there if the hook returns limits.HastenLeast earlier. A backend that reads it before is refused, and
// the call is submitted again when the hook has returned.

// drawHooks draws the hooks of a run. Runs without hooks stay as they are, and without faults no hook is late.
func (o *Options) drawHooks() {
	r := rand.New(rand.NewPCG(o.Seed, 8))
	if r.IntN(3) > 0 {
		return
	}
	o.Hooked, o.Hook = 1-r.Float64()*r.Float64(), Duration(1e5+r.Float64()*r.Float64()*5e7)
	if o.mayDelay() && r.IntN(2) == 0 {
		o.LateHooks = r.Float64() * r.Float64()
	}
}

// drawHook draws a call's hook. A frontend of the previous version cannot tell of one.
func (f *front) drawHook(x *call) {
	c := f.c
	if c.o.Hook == 0 || f.old || c.load.Float64() >= c.o.Hooked {
		return
	}

	// The expected time is exact for a hook that takes longest. It is counted by the frontend's clock.
	expected := 1 + c.load.Int64N(int64(c.o.Hook))
	x.expected = c.now.Add(Duration(expected))
	x.preparing, x.inputAt = true, c.now.Add(Duration(float64(expected)*(1-c.load.Float64()/2))-c.hookSlack())
	if c.load.Float64() < c.o.LateHooks {
		x.inputAt = x.expected.Add(Duration(c.load.Int64N(2 * int64(c.o.Hook))))
	}
	x.inputAt = max(x.inputAt, c.now)
}

// hookSlack bounds how much earlier than expected an input may be read: trips vary, and clocks differ.
func (c *Cluster) hookSlack() Duration { return c.o.Vary + Duration(2*c.o.Drift*float64(c.o.Hook)) }

// scheduleHook ends a call's hook.
func (f *front) scheduleHook(id uint64) {
	if f.calls[id-1].preparing {
		f.c.at(f.calls[id-1].inputAt, func() { f.endHook(id) })
	}
}

// endHook lets backends read a call's input. It tells the scheduler, or submits the call again if a backend was refused.
func (f *front) endHook(id uint64) {
	x := &f.calls[id-1]
	x.preparing = false
	s := f.obeyedSession()
	early := x.expected.Sub(f.c.now) >= Duration(limits.HastenLeast)
	if f.waitingCall(id) == nil || s == nil || !x.submitted || !x.again && !early {
		return
	}

	if _, served := s.namedService(x.model, x.asks); !served || x.deadline <= f.c.now {
		return
	}

	if x.again {
		x.again = false
		x.resubmits++
	}
	f.submit(s, []wire.Submit{f.newSubmit(s, id)})
}

// keepsUnread reports whether a call stays although a backend could not read its input: the hook had not returned. If it
// has returned since, the call is submitted again at once.
func (f *front) keepsUnread(id uint64, why model.Reason) bool {
	x := f.waitingCall(id)
	if x == nil || x.expected == 0 || why != model.InputUnavailable || x.resubmits >= resubmitsMax {
		return false
	}
	x.again = true
	if !x.preparing {
		f.endHook(id)
	}
	return true
}

// readyIn returns wire.Submit.ReadyIn of a call that is sent now, by the frontend's clock.
func (f *front) readyIn(x *call) int64 {
	if !x.preparing {
		return 0
	}
	return int64(float64(max(0, x.expected.Sub(f.c.now))) * f.clockRate)
}

// preparing returns the call of a batch's item if its hook has not returned, else nil.
func (o *order) preparing(i int) *call {
	it := &o.x.Items[i]
	f := o.s.fronts[it.Frontend]
	if f == nil {
		return nil
	}
	if x := f.f.waitingCall(it.ID); x != nil && x.preparing {
		return x
	}
	return nil
}

// checkHooks runs when a backend takes an order and reads its inputs.
func (k *checker) checkHooks(o *order) {
	// A link that was slow when it was measured makes the scheduler send orders too early.
	if k.c.o.SlowLinks > 0 {
		return
	}
	for i := range o.x.Items {
		if x := o.preparing(i); x != nil && k.c.now.Add(k.c.hookSlack()) < x.expected {
			k.fail("C13: batch %d reads request %d at %d, its input is expected at %d", o.x.Batch, o.x.Items[i].ID, k.c.now, x.expected)
		}
	}
}
