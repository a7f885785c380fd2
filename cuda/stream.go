package cuda

import "fmt"

// Stream is an ordered queue of commands on the device. Streams are pooled: Free returns one to the pool.
type Stream struct {
	dev    *Device
	handle uint64
	spare  bool // not pooled: there are few, and they live long
}

// Event marks a point in a stream. Events are pooled: Free returns one to the pool, and a later owner's Record starts
// it again.
type Event struct {
	dev    *Device
	handle uint64
}

// streamsIdleMax bounds the idle objects in the pools.
const (
	streamsIdleMax = 16
	eventsIdleMax  = 256
)

// NewStream returns a stream from the pool, or a new one.
func (d *Device) NewStream() (*Stream, error) {
	if err := d.checkUsable("new stream"); err != nil {
		return nil, err
	}

	d.mu.Lock()
	if n := len(d.streams); n > 0 {
		s := d.streams[n-1]
		d.streams = d.streams[:n-1]
		d.mu.Unlock()
		return s, nil
	}
	d.mu.Unlock()

	// The driver may take long to create a stream, so ask it without the lock.
	return d.createStream(false)
}

// NewSpareStream returns a stream for work without a deadline: its kernels give way to those of other streams, but one
// that runs is not stopped.
func (d *Device) NewSpareStream() (*Stream, error) {
	if err := d.checkUsable("new spare stream"); err != nil {
		return nil, err
	}
	return d.createStream(true)
}

func (d *Device) createStream(spare bool) (*Stream, error) {
	h, c := d.drv.newStream(spare)
	if c != CodeSuccess {
		return nil, d.checkCode(c, "new stream")
	}

	d.live.streams.Add(1)
	return &Stream{dev: d, handle: h, spare: spare}, nil
}

// Free returns the stream to the pool. Commands that still run on it precede those of its next owner.
func (s *Stream) Free() {
	if s == nil {
		return
	}
	d := s.dev

	d.mu.Lock()
	defer d.mu.Unlock()
	if !s.spare && len(d.streams) < streamsIdleMax && !d.closed.Load() {
		d.streams = append(d.streams, s)
		return
	}

	// The pool is full, or Close has emptied it, or the stream is no other one's equal.
	d.drv.freeStream(s.handle)
	d.live.streams.Add(-1)
}

// NewEvent returns an event from the pool, or a new one.
func (d *Device) NewEvent() (*Event, error) {
	if err := d.checkUsable("new event"); err != nil {
		return nil, err
	}

	d.mu.Lock()
	if n := len(d.events); n > 0 {
		e := d.events[n-1]
		d.events = d.events[:n-1]
		d.mu.Unlock()
		return e, nil
	}
	d.mu.Unlock()

	h, c := d.drv.newEvent()
	if c != CodeSuccess {
		return nil, d.checkCode(c, "new event")
	}

	d.live.events.Add(1)
	return &Event{dev: d, handle: h}, nil
}

// Free returns the event to the pool.
func (e *Event) Free() {
	if e == nil {
		return
	}
	d := e.dev

	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.events) < eventsIdleMax && !d.closed.Load() {
		d.events = append(d.events, e)
		return
	}

	d.drv.freeEvent(e.handle)
	d.live.events.Add(-1)
}

// Module is loaded device code.
type Module struct {
	dev    *Device
	handle uint64
}

// Kernel is a function of a Module, valid until the module is freed, or a library's function (see Libraries).
type Kernel struct {
	handle uint64
	call   bool // a library's: called on the host, it enqueues its own work
}

// LoadModule loads PTX or a cubin. The driver compiles PTX for this device.
func (d *Device) LoadModule(image []byte) (*Module, error) {
	if err := d.checkUsable("load module"); err != nil {
		return nil, err
	}
	if len(image) == 0 {
		return nil, &Error{Op: "load module: empty image", Code: CodeInvalidImage}
	}

	h, c := d.drv.loadModule(image)
	if c != CodeSuccess {
		return nil, d.checkCode(c, fmt.Sprintf("load module of %d bytes", len(image)))
	}

	d.live.modules.Add(1)
	return &Module{dev: d, handle: h}, nil
}

// Kernel returns the function with a name.
func (m *Module) Kernel(name string) (Kernel, error) {
	if err := m.dev.checkUsable("kernel"); err != nil {
		return Kernel{}, err
	}

	h, c := m.dev.drv.kernel(m.handle, name)
	if c != CodeSuccess {
		return Kernel{}, m.dev.checkCode(c, "kernel "+name)
	}
	return Kernel{handle: h}, nil
}

// Free unloads the module; none of its kernels may be running.
func (m *Module) Free() {
	if m == nil || m.handle == 0 {
		return
	}

	// The driver waits for the device before it unloads; releaseLater bounds that wait on a device that hangs.
	m.dev.releaseLater(release{module: m.handle})
	m.handle = 0
	m.dev.live.modules.Add(-1)
}

// Graph is a captured Submission, which one command enqueues as a whole.
type Graph struct {
	dev    *Device
	handle uint64
}

// Capture turns s into a graph. Every command of s must be on st, or on a stream that waits for an event of st and
// for which st waits again before the end (a fork and a join). Addresses and parameters are fixed at the capture.
func (d *Device) Capture(st *Stream, s *Submission) (*Graph, error) {
	if err := d.checkUsable("capture"); err != nil {
		return nil, err
	}
	if len(s.commands) == 0 {
		return nil, &Error{Op: "capture: empty submission", Code: CodeInvalidValue}
	}

	h, c := d.drv.capture(st.handle, s.commands, s.params)
	if c != CodeSuccess {
		return nil, d.checkCode(c, fmt.Sprintf("capture %d commands", len(s.commands)))
	}

	d.live.graphs.Add(1)
	return &Graph{dev: d, handle: h}, nil
}

// Free destroys the graph; it must not be running.
func (g *Graph) Free() {
	if g == nil || g.handle == 0 {
		return
	}
	g.dev.drv.freeGraph(g.handle)
	g.handle = 0
	g.dev.live.graphs.Add(-1)
}
