package regions

import (
	"time"

	"downbeat.dev/cuda"
)

// Bounds of one copy between device and host.
const (
	pieceMax = 4 << 20
	copyMost = 10 * time.Second // afterwards the device counts as hanging
)

// way holds the resources of one call's copies: a stream, an event at their end, and pinned memory.
type way struct {
	stream   *cuda.Stream
	event    *cuda.Event
	slab     *cuda.Slab
	commands cuda.Submission
}

// openWay returns a way for copies of up to n bytes. Its parts come from the device's pools.
func openWay(d *cuda.Device, n int) (w *way, err error) {
	w = &way{}
	if w.stream, err = d.NewStream(); err != nil {
		return nil, err
	}

	if w.event, err = d.NewEvent(); err == nil {
		w.slab, err = d.AllocHost(int64(n))
	}

	if err != nil {
		w.freeWay()
		return nil, err
	}
	return w, nil
}

func (w *way) freeWay() {
	w.slab.Free()
	w.event.Free()
	w.stream.Free()
}

// runCommands submits the commands to the device, and waits for their end.
func (w *way) runCommands(d *cuda.Device) error {
	w.commands.Record(w.stream, w.event)
	err := d.Submit(&w.commands)
	w.commands.Reset()

	if err != nil {
		return err
	}
	return d.WaitFor(copyMost, w.event)
}
