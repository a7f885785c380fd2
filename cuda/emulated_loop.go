package cuda

import (
	"math"
	"time"

	"downbeat.dev/cuda/pace"
)

const never = time.Duration(math.MaxInt64)

// nextEnd returns the engine whose command ends first; call it under mu.
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

// finishCommand ends the command on an engine, so that its stream can continue; call it under turn and mu.
func (m *emulated) finishCommand(engine int) {
	e := &m.engines[engine]
	// In virtual time the bytes move only now. In real time they moved as soon as a caller looked.
	if !e.performed && !m.performCopy(engine) {
		return
	}

	s, end := e.stream, e.end
	m.now = max(m.now, end)
	e.stream = nil
	s.head++
	// The stream's next command cannot begin before this one has ended.
	s.busy, s.ready = false, end
}

// performCopy moves the bytes of an engine's command. It returns false if that made the device unusable. Call it
// under turn and mu; it releases mu while it works.
func (m *emulated) performCopy(engine int) bool {
	e := &m.engines[engine]
	cmd := e.stream.queue[e.stream.head]

	// An allocation creates a new table of blocks, so the command keeps reading the table with which it began.
	m.running = m.mem
	launch := m.launchOf(&cmd)
	fn := m.cfg.Kernels[launch.Kernel]

	// Kernels may run long, so they run without the lock.
	m.mu.Unlock()
	from := time.Now()
	c := moveBytes(&m.running, &cmd, launch, fn)
	took := time.Since(from)
	m.mu.Lock()

	if e.performed = c == CodeSuccess; !e.performed {
		m.lost = c
		return false
	}

	if !m.cfg.Virtual && cmd.op == opLaunch {
		e.end = max(e.end, e.begin+took) // the Go form may take longer than the model
	}
	return true
}

// moveBytes moves the bytes of one command.
func moveBytes(m *DeviceMemory, cmd *emCommand, l Launch, fn KernelFunc) (c Code) {
	// An access outside allocated memory panics; a real device reports a code.
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

// stepClock moves to the next end not after until and performs it; it returns false if there is none. In virtual time
// the effect of a command shows when the command ends, so that a reader who does not wait finds stale bytes. In real
// time the bytes move as soon as a caller looks, so that the time of moving them does not delay the end.
func (m *emulated) stepClock(until time.Duration) bool {
	m.thawHung()
	m.beginReady()
	if m.lost != CodeSuccess {
		return false
	}

	if !m.cfg.Virtual {
		for i := range m.engines {
			if e := &m.engines[i]; e.stream != nil && !e.hung && !e.performed && e.begin <= until {
				return m.performCopy(i)
			}
		}
	}

	// Every command that has begun is performed, so time moves to the next end.
	engine, end := m.nextEnd()
	if engine < 0 || end > until {
		return false
	}

	m.now = max(m.now, end)
	m.finishCommand(engine)
	m.beginReady()
	return true
}

// thawHung ends the hangs whose channel is closed.
func (m *emulated) thawHung() {
	for i := range m.engines {
		e := &m.engines[i]
		if e.stream == nil || !e.hung || e.until == nil {
			continue
		}
		select {
		case <-e.until:
			e.hung, e.end = false, max(e.end, m.readClock())
			m.freed.Broadcast()
		default:
		}
	}
}

// catchUp performs the commands that have begun by now and completes those that have ended. If another goroutine is
// doing this, catchUp leaves the work to it.
func (m *emulated) catchUp() {
	if !m.turn.TryLock() {
		return
	}
	defer m.turn.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.stepClock(m.readClock()) {
	}
}

// pause is called between two queries of Device.Wait. Virtual time jumps to the next end; real time sleeps until
// then.
func (m *emulated) pause(tries int, _ time.Duration) bool {
	if !m.cfg.Virtual {
		m.sleepToEnd(tries)
		return true
	}
	m.turn.Lock()
	defer m.turn.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()

	// Nothing can change any more if no command ends, the device stays as it was, and streams still hold commands.
	before := m.lost
	moved := m.stepClock(never)
	return moved || m.lost != before || m.progressed()
}

// progressed reports whether beginning commands alone completed something, for example when only records were left.
func (m *emulated) progressed() bool {
	for _, s := range m.order {
		if s.head < len(s.queue) {
			return false
		}
	}
	return true
}

// longest is the longest sleep of a waiter before it checks its context and faults.
const longest = 5 * time.Millisecond

// sleepToEnd waits for the next end. For submitted commands that end cannot become earlier. The last stretch is
// precise; a longer sleep is cut short, so that the waiter notices the end of its context.
func (m *emulated) sleepToEnd(tries int) {
	m.mu.Lock()
	engine, end := m.nextEnd()
	wait := end - m.readClock()

	// A timer serves one waiter at a time, and only for the last stretch, which must be precise.
	var t *pace.Timer
	if n := len(m.timers); engine >= 0 && wait <= 2*longest && n > 0 {
		t, m.timers = m.timers[n-1], m.timers[:n-1]
	}
	m.mu.Unlock()

	switch {
	case engine < 0: // a hang, or another goroutine is performing the command
		time.Sleep(min(time.Duration(tries)*10*time.Microsecond, longest))
		return
	case wait > 2*longest:
		time.Sleep(longest)
		return
	case t == nil:
		var err error
		if t, err = pace.New(); err != nil {
			time.Sleep(wait)
			return
		}
	}

	t.Wait(m.start.Add(end))

	m.mu.Lock()
	defer m.mu.Unlock()

	// Close has freed the idle timers; this one was in use.
	if m.closed {
		_ = t.Close()
		return
	}
	m.timers = append(m.timers, t)
}

// Advance moves the virtual time of an emulated device forward by d and performs the commands that end within it. It
// panics on any other device.
func (d *Device) Advance(t time.Duration) {
	m := d.virtual()
	m.turn.Lock()
	defer m.turn.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()

	until := m.now + t
	for m.stepClock(until) {
	}

	// Time also passes when nothing ends.
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
