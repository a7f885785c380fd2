package devicetest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"downbeat.dev/backend/device"
)

// laneContract is one lane of a device, whose other lanes run batches and check their outputs until Close.
type laneContract struct {
	device.Executor
	others []device.Executor
	stop   atomic.Bool
	ended  sync.WaitGroup
}

// AmongLanes returns the first of a device's lanes, for the contract's Open. The others run batches of the first model
// beside it until it is closed: what is loaded, updated and run on the first must not change their outputs. Close closes
// all lanes.
func (c Case) AmongLanes(t *testing.T, lanes []device.Executor) device.Executor {
	t.Helper()
	l := &laneContract{Executor: lanes[0], others: lanes[1:]}
	for i, e := range l.others {
		m := c.Models[0]
		slots := Slots(t, 1, device.SlotBytes(c.Models))
		if err := Load(e, m, slots); err != nil {
			t.Fatalf("load on lane %d: %v", i+1, err)
		}

		// The inputs stay, so that a batch here allocates nothing: the contract counts allocations of the process.
		var want [][]byte
		r := rand.New(rand.NewPCG(21, uint64(i)))
		for row := range m.BatchMax {
			want = append(want, c.Want(m, c.fillRow(m, slots[0], row, r)))
		}
		l.ended.Add(1)
		go l.runLane(t, i+1, e, device.Batch{Model: m, Slot: slots[0], Rows: m.BatchMax}, want)
	}
	return l
}

// runLane runs one batch again and again.
func (l *laneContract) runLane(t *testing.T, lane int, e device.Executor, b device.Batch, want [][]byte) {
	defer l.ended.Done()
	for !l.stop.Load() {
		for k := range b.Model.Outputs {
			clear(b.Slot.Output(b.Model, k, b.Rows))
		}
		if err := device.Execute(e, b); err != nil {
			t.Errorf("lane %d: %v", lane, err)
			return
		}

		for row := range b.Rows {
			for k, out := range b.Model.Outputs {
				if got := b.Slot.OutputRow(b.Model, k, row); !bytes.Equal(got, want[row][out.Offset:][:out.Bytes]) {
					t.Errorf("lane %d: row %d is % x", lane, row, headOf(got))
					return
				}
			}
		}
		yieldStream()
	}
}

// Close ends the other lanes' batches, and closes all lanes.
func (l *laneContract) Close() error {
	l.stop.Store(true)
	l.ended.Wait()
	err := l.Executor.Close()
	for _, e := range l.others {
		err = errors.Join(err, e.Close())
	}
	return err
}
