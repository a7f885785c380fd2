package cuda

import (
	"math"
	"time"
)

const never = time.Duration(math.MaxInt64)

// nextEnd returns the engine whose command ends first; call under mu.
func (m *emulated) nextEnd() (engine int, end time.Duration) {
	engine, end = -1, never
	for i := range m.engines {
		e := &m.engines[i]
		if e.stream != nil && !e.hung && e.end < end {
			engine, end = i, e.end
		}
	}
	return engine, end
}

// finish performs the command that ended on an engine and lets its stream go on. It is called under
// turn and mu, and lets go of mu while bytes move.
func (m *emulated) finish(engine int) {
	e := &m.engines[engine]
	s, end := e.stream, e.end
	cmd := s.queue[s.head]
	m.running = m.mem
	launch := m.launch(&cmd)
	fn := m.cfg.Kernels[launch.Kernel]
	m.mu.Unlock()
	from := time.Now()
	c := perform(&m.running, &cmd, launch, fn)
	m.mu.Lock()
	if c != CodeSuccess {
		m.lost = c
		return
	}
	if !m.cfg.Virtual && cmd.op == opLaunch {
		end = max(end, e.begin+time.Since(from)) // the Go form may take longer than the model says
	}
	m.now = max(m.now, end)
	e.stream, e.end = nil, end
	s.head++
	s.busy, s.ready = false, end
}

// perform moves the bytes of one command.
func perform(m *DeviceMemory, cmd *emCommand, l Launch, fn KernelFunc) (c Code) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case illegalAddress:
			c = CodeIllegalAddress
		default:
			panic(r)
		}
	}()
	n := int64(cmd.n)
	switch cmd.op {
	case opCopyIn:
		copy(m.Bytes(Address(cmd.a), n), hostBytes(cmd.b, cmd.n))
	case opCopyOut:
		copy(hostBytes(cmd.a, cmd.n), m.Bytes(Address(cmd.b), n))
	case opCopy:
		copy(m.Bytes(Address(cmd.a), n), m.Bytes(Address(cmd.b), n))
	case opFill:
		b := m.Bytes(Address(cmd.a), n)
		for i := range b {
			b[i] = byte(cmd.shared)
		}
	case opLaunch:
		fn(m, l)
	}
	return CodeSuccess
}

// step moves to the next end not after until and performs it; false when there is none.
func (m *emulated) step(until time.Duration) bool {
	m.begin()
	if m.lost != CodeSuccess {
		return false
	}
	engine, end := m.nextEnd()
	if engine < 0 || end > until {
		return false
	}
	m.now = max(m.now, end)
	m.finish(engine)
	m.begin()
	return true
}

// pause is called between two queries of Device.Wait. Virtual time jumps to the next end; real time
// sleeps, longer the more often it was asked.
func (m *emulated) pause(tries int) bool {
	if m.cfg.Virtual {
		m.turn.Lock()
		defer m.turn.Unlock()
		m.mu.Lock()
		defer m.mu.Unlock()
		before := m.lost
		moved := m.step(never)
		return moved || m.lost != before || m.progressed()
	}
	nap(pauseFor(tries))
	return true
}

// progressed tells whether begin alone completed something, as when only records were left.
func (m *emulated) progressed() bool {
	for _, s := range m.streams {
		if s.head < len(s.queue) {
			return false
		}
	}
	return true
}

// pauseFor grows from 5 µs to 200 µs: short batches are seen at once, long ones cost no processor.
func pauseFor(tries int) time.Duration {
	return min(time.Duration(5+tries)*time.Microsecond, 200*time.Microsecond)
}

// Advance moves the virtual time of an emulated device on by d and performs what ends within it. It
// panics on any other device.
func (d *Device) Advance(t time.Duration) {
	m := d.virtual()
	m.turn.Lock()
	defer m.turn.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	until := m.now + t
	for m.step(until) {
	}
	m.now = until
}

// Now returns the virtual time of an emulated device since it was opened.
func (d *Device) Now() time.Duration {
	m := d.virtual()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

func (d *Device) virtual() *emulated {
	m, ok := d.drv.(*emulated)
	if !ok || !m.cfg.Virtual {
		panic("cuda: virtual time of a device that has none")
	}
	return m
}

// loop runs a real-time device: it performs what has ended, then sleeps until the next end or submission.
func (m *emulated) loop() {
	defer close(m.ended)
	for {
		m.turn.Lock()
		m.mu.Lock()
		for m.step(m.reading()) {
		}
		_, end := m.nextEnd()
		closed, wait := m.closed, end-m.reading()
		if m.lost != CodeSuccess {
			end = never
		}
		m.mu.Unlock()
		m.turn.Unlock()
		if closed {
			return
		}
		m.sleep(end, wait)
	}
}

// sleep waits for the next end. Go's timers fire up to a millisecond late, so the last two
// milliseconds are slept in short naps, between which a submission is noticed.
func (m *emulated) sleep(end, wait time.Duration) {
	const late = 2 * time.Millisecond
	switch {
	case end == never:
		<-m.wake
	case wait > late:
		t := time.NewTimer(wait - late)
		defer t.Stop()
		select {
		case <-m.wake:
		case <-t.C:
		}
	case wait > 0:
		nap(min(wait, 50*time.Microsecond))
	}
}
