package measure

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"downbeat.dev/backend/device"
)

// Lane is one of several executors that share a device, with the slots of its batches.
type Lane struct {
	device.Executor
	Slots []*device.Slot // one; two if batches are submitted ahead
}

// Beside keeps all lanes of a device but the first busy with a model, while the first is measured.
type Beside struct {
	m     *device.Model
	lanes []*busyLane

	mu      sync.Mutex
	changed sync.Cond // rows, or the state of a lane
	rows    int       // of the batches that lanes submit; 0: they rest
	stop    bool
	err     error // of the first lane that failed
	ended   sync.WaitGroup
}

// busyLane runs one batch after another.
type busyLane struct {
	Lane
	turn  int            // the slot of its next batch
	under []device.Batch // submitted, oldest first; guarded by Beside.mu
}

// NewBeside starts the other lanes, which have m loaded. The caller must End it before it closes them.
func NewBeside(m *device.Model, others []Lane, seed uint64) (*Beside, error) {
	w := &Beside{m: m}
	w.changed.L = &w.mu
	for i, l := range others {
		for _, s := range l.Slots {
			r := &run{m: m, s: s, random: rand.New(rand.NewPCG(seed, uint64(i)+2))}
			if err := r.fillInputs(); err != nil {
				return nil, err
			}
		}
		w.lanes = append(w.lanes, &busyLane{Lane: l})
	}

	for _, l := range w.lanes {
		w.ended.Add(1)
		go w.keepBusy(l)
	}
	return w, nil
}

// Among returns a Timer of the first lane: while it times a batch, every other lane runs batches of the same size, one
// after another without a gap.
func (w *Beside) Among(first Timer) Timer {
	return func(b device.Batch) (time.Duration, error) {
		if err := w.beginSize(b.Rows); err != nil {
			return 0, err
		}
		took, err := first(b)
		return took, errors.Join(err, w.failure())
	}
}

// beginSize makes the lanes run batches of a size, and returns when each runs one.
func (w *Beside) beginSize(rows int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rows = rows
	w.changed.Broadcast()

	for w.err == nil && !w.allRun(rows) {
		w.changed.Wait()
	}
	return w.err
}

// allRun reports whether the batch that runs on each lane has so many rows. mu is held.
func (w *Beside) allRun(rows int) bool {
	for _, l := range w.lanes {
		if len(l.under) == 0 || l.under[0].Rows != rows {
			return false
		}
	}
	return true
}

func (w *Beside) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// keepBusy runs batches of the present size on a lane. Where the lane takes batches ahead, the next one is submitted
// before the one that runs ends, so that the device never waits for this goroutine.
func (w *Beside) keepBusy(l *busyLane) {
	defer w.ended.Done()
	for {
		w.mu.Lock()
		for w.rows == 0 && !w.stop && w.err == nil && len(l.under) == 0 {
			w.changed.Wait()
		}
		rows := w.rows
		if w.stop || w.err != nil {
			rows = 0
		}
		w.mu.Unlock()

		if rows == 0 && len(l.under) == 0 {
			return
		}
		if err := w.stepLane(l, rows); err != nil {
			w.endAll(err)
			return
		}
	}
}

// stepLane submits a batch if a slot is free and rows are wanted, otherwise it waits for the oldest one.
func (w *Beside) stepLane(l *busyLane, rows int) error {
	if rows > 0 && len(l.under) < len(l.Slots) {
		b := device.Batch{Model: w.m, Slot: l.Slots[l.turn], Rows: rows}
		err := l.Submit(b)

		// An executor may have no room beside the batch that runs.
		if err == nil {
			l.turn = (l.turn + 1) % len(l.Slots)
			w.changeLane(func() { l.under = append(l.under, b) })
			return nil
		}
		if !errors.Is(err, device.ErrBusy) || len(l.under) == 0 {
			return fmt.Errorf("a lane beside the measured one: batch of %d: %w", rows, err)
		}
	}

	oldest := l.under[0]
	err := l.Wait(oldest)
	w.changeLane(func() { l.under = l.under[1:] })
	if err != nil {
		return fmt.Errorf("a lane beside the measured one: batch of %d: %w", oldest.Rows, err)
	}
	return nil
}

// changeLane changes a lane's state and wakes those who wait for it.
func (w *Beside) changeLane(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	w.changed.Broadcast()
}

func (w *Beside) endAll(err error) {
	w.changeLane(func() {
		if w.err == nil {
			w.err = err
		}
	})
}

// End returns when the lanes have ended their batches.
func (w *Beside) End() {
	w.changeLane(func() { w.stop = true })
	w.ended.Wait()
}
