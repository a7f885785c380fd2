package dispatch

import (
	"context"
	"sync"
	"time"

	"downbeat.dev/bench/median"
	"downbeat.dev/core/engine"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// ℓ(1) and ℓ(2) of the only model, and its requests' budget, in ns. With one GPU and one request, the batch is due
// ℓ(2) before the deadline. A late batch still meets it, else the scheduler would wake earlier.
const loneExec, loneExec2, loneBudget = 1_000_000, 1_900_000, 10_000_000

// lone is an engine with real loops, one GPU and one request at a time.
type lone struct {
	clock engine.Monotonic
	mu    sync.Mutex
	late  []int64
	sent  chan wire.Done
}

func (l *lone) Models([]model.Info)         {}
func (l *lone) Outcomes(m []wire.Outcome)   { l.sent <- wire.Done{} }
func (l *lone) Place([]wire.Placement)      {}
func (l *lone) Command([]wire.ModelCommand) {}

// Spare implements engine.BackendPort; the rig has no spare work.
func (l *lone) Spare([]wire.SpareStart)    {}
func (l *lone) Answers([]wire.ModelAnswer) {}
func (l *lone) Peers([]wire.Peer)          {}
func (l *lone) Cut(error)                  {}

func (l *lone) Execute(m []engine.Order) {
	// Read the clock before taking the lock, so that waiting for the lock does not count.
	now := int64(l.clock.Now())
	l.mu.Lock()
	l.late = append(l.late, now-(int64(m[0].Requests[0].Deadline)-loneExec2)) // the deadline as the engine plans it
	l.mu.Unlock()
	l.sent <- wire.Done{Batch: m[0].Batch, GPU: m[0].GPU}
}

// timerWarm is the number of uncounted batches at the beginning: a loop learns how late its host wakes it.
const timerWarm = 400

// timerError measures how late an otherwise idle loop sends due batches, over n batches.
func timerError(ctx context.Context, n int) (p50, p99 int64, err error) {
	e, err := engine.New(engine.Options{})
	if err != nil {
		return 0, 0, err
	}
	defer e.Close()

	l := &lone{sent: make(chan wire.Done, 4)}
	b, err := e.OpenBackend(wire.BackendHello{Name: "lone", GPUs: []string{"0"}, Models: []wire.BackendModel{
		{Info: model.Info{Name: "m", SLO: 50e6}, Profile: []time.Duration{loneExec, loneExec2}}}}, l)
	if err != nil {
		return 0, 0, err
	}

	f, err := e.OpenFrontend(wire.FrontendHello{Name: "lone"}, l)
	if err != nil {
		return 0, 0, err
	}

	for i := range timerWarm + n {
		f.Submit([]wire.Submit{{ID: uint64(i + 1), Budget: loneBudget}})
		select {
		case m := <-l.sent:
			b.Done([]wire.Done{m})
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-time.After(time.Second):
		}
	}

	l.late = l.late[min(timerWarm, len(l.late)):]
	return median.Percentile(l.late, 50), median.Percentile(l.late, 99), nil
}
