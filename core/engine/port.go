package engine

import (
	"slices"

	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// FrontendPort is where a frontend's session receives the engine's messages. Calls come from any goroutine, without a
// lock of the engine; they must not block. Slices are valid during the call. A call in progress when the session
// closes may end shortly after Close.
type FrontendPort interface {
	Models([]model.Info)
	Outcomes([]wire.Outcome)
	Answers([]wire.ModelAnswer)
}

// BackendPort is where a backend's session receives the engine's messages, under the same rules.
type BackendPort interface {
	Peers([]wire.Peer)
	Execute([]Order)
	Place([]wire.Placement)
	Command([]wire.ModelCommand)
	Spare([]wire.SpareStart)
	Cut(err error) // the engine gives up the backend: end the session
}

// Order is a batch for one of a backend's GPUs; wire.Execute is its message.
type Order struct {
	Batch         uint64
	GPU, Model    uint32          // indices into the hello's
	Answer        uint32          // wire.Execute.Answer
	Start, Latest int64           // ns from now
	Requests      []sched.Request // the engine's memory: read only
	sent          sched.Time
}

// Message fills in the order's message, reusing m's memory.
func (o *Order) Message(m *wire.Execute) {
	m.Batch, m.GPU, m.Model, m.Answer, m.Start, m.Latest = o.Batch, o.GPU, o.Model, o.Answer, o.Start, o.Latest
	m.Items = slices.Grow(m.Items[:0], len(o.Requests))[:len(o.Requests)]
	for i := range o.Requests {
		// Assign field by field: a whole Item would be built on the stack, and the copy from there would wait for the
		// stores.
		r, x := &o.Requests[i], &m.Items[i]
		x.ID, x.Frontend, x.Budget = uint64(r.ID), r.Origin, uint32(left(r.Due, o.sent))
		x.Input = r.Input
	}
}

// AppendMessages appends orders as messages. Messages beyond dst's length within its capacity lend their items'
// memory.
func AppendMessages(dst []wire.Execute, orders []Order) []wire.Execute {
	n := len(dst)
	dst = slices.Grow(dst, len(orders))[:n+len(orders)]
	for i := range orders {
		orders[i].Message(&dst[n+i])
	}
	return dst
}

// A request's Due is its deadline in µs of the engine's clock, modulo 2³². That is 71 minutes, and budgets are at
// most an hour.
func dueAt(t sched.Time) uint32 { return uint32(t / microsecond) }

// left returns the µs from now until due; 0 if it is past.
func left(due uint32, now sched.Time) int64 {
	if d := due - dueAt(now); d <= dueLimit {
		return int64(d)
	}
	return 0
}

const (
	microsecond = 1000
	dueLimit    = sched.SLOLimit/microsecond + 1
)
