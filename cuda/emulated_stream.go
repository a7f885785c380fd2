package cuda

import (
	"slices"
	"time"
)

type emStream struct {
	queue  []emCommand // from head on
	head   int
	params []byte        // of the launches in queue
	busy   bool          // the command at its head is running on an engine
	ready  time.Duration // when the command before its head ended
	freed  bool
	spare  bool // gives way to others
}

// startTime is the earliest time at which the head of s can start.
func (s *emStream) startTime() time.Duration { return max(s.ready, s.queue[s.head].at) }

// precedes reports whether the head of s goes before that of o on an engine that is free from a time on. The first
// ready is the first served, except that spare work waits while others are ready; ties go by the order of submission.
func (s *emStream) precedes(o *emStream, free time.Duration) bool {
	ours, theirs := s.startTime(), o.startTime()
	switch {
	case s.spare != o.spare && max(ours, free) == max(theirs, free):
		return o.spare
	case ours != theirs:
		return ours < theirs
	}
	return s.queue[s.head].seq < o.queue[o.head].seq
}

type emCommand struct {
	command
	params  []byte        // of a launch in a graph; other launches have theirs in the stream
	at      time.Duration // of submission
	seq     uint64        // order of submission
	target  uint64        // of a record: its number; of a wait: the record it waits for
	inGraph bool
}

// emEvent counts records. done is the highest one that has completed, and at is its time.
type emEvent struct {
	recorded, done uint64
	at             time.Duration
}

func (m *emulated) newStream(spare bool) (uint64, Code) {
	c := m.enterCall("new stream")
	defer m.mu.Unlock()
	if c != CodeSuccess {
		return 0, c
	}

	h := m.newHandle()
	s := &emStream{spare: spare}
	m.streams[h] = s
	m.order = append(m.order, s)
	return h, CodeSuccess
}

func (m *emulated) freeStream(h uint64) Code {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.streams[h]
	if s == nil {
		return CodeInvalidHandle
	}

	if s.head < len(s.queue) {
		s.freed = true // like the driver, destroy a stream only when its commands are done
	} else {
		m.order = slices.DeleteFunc(m.order, func(o *emStream) bool { return o == s })
	}
	delete(m.streams, h)
	return CodeSuccess
}

func (m *emulated) newEvent() (uint64, Code) {
	c := m.enterCall("new event")
	defer m.mu.Unlock()
	if c != CodeSuccess {
		return 0, c
	}

	h := m.newHandle()
	m.events[h] = &emEvent{}
	return h, CodeSuccess
}

func (m *emulated) freeEvent(h uint64) Code {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.events, h)
	return CodeSuccess
}

func (m *emulated) query(h uint64) Code {
	m.mu.Lock()
	defer m.mu.Unlock()

	// Nothing runs in the background: in real time the caller of a query performs what is due, and mu must be free
	// for that.
	if e := m.events[h]; e != nil && e.done < e.recorded && m.lost == CodeSuccess && !m.cfg.Virtual {
		m.mu.Unlock()
		m.catchUp()
		m.mu.Lock()
	}

	// The event may have been freed in the meantime.
	e := m.events[h]
	switch {
	case m.lost != CodeSuccess:
		return m.lost
	case e == nil:
		return CodeInvalidHandle
	case e.done < e.recorded:
		return CodeNotReady
	}
	return CodeSuccess
}

func (m *emulated) elapsed(from, to uint64) (time.Duration, Code) {
	m.mu.Lock()
	defer m.mu.Unlock()

	a, b := m.events[from], m.events[to]
	if a == nil || b == nil || a.recorded == 0 || b.recorded == 0 {
		return 0, CodeInvalidHandle
	}
	if a.done < a.recorded || b.done < b.recorded {
		return 0, CodeNotReady
	}
	return b.at - a.at, CodeSuccess
}

func (m *emulated) submitCommands(commands []command, params []byte) (n int, c Code) {
	c = m.enterCall("submit")
	defer m.mu.Unlock()
	if c != CodeSuccess {
		return 0, c
	}

	n, c = m.enqueueCommands(m.readClock(), commands, params, false)
	m.beginReady()
	return n, c
}

// enqueueCommands appends commands to their streams and expands graphs; call it under mu.
func (m *emulated) enqueueCommands(at time.Duration, commands []command, params []byte, inGraph bool) (int, Code) {
	for i := range commands {
		cmd := &commands[i]
		s := m.streams[cmd.stream]
		if s == nil {
			return i, CodeInvalidHandle
		}

		q := emCommand{command: *cmd, at: at, seq: m.seq, inGraph: inGraph}
		m.seq++

		switch cmd.op {
		case opGraph:
			if c := m.enqueueGraph(at, cmd); c != CodeSuccess {
				return i, c
			}
			continue
		case opLaunch:
			if m.kernels[cmd.a] == "" || cmd.b+cmd.n > uint64(len(params)) || cmd.block[0]*cmd.block[1]*cmd.block[2] == 0 {
				return i, CodeInvalidValue
			}
			q.params = params[cmd.b : cmd.b+cmd.n] // the parameters of a graph never change
		case opRecord, opWait:
			e := m.events[cmd.a]
			if e == nil {
				return i, CodeInvalidHandle
			}
			if cmd.op == opRecord {
				e.recorded++
			}
			// A wait is for the latest earlier record; later records do not delay it.
			q.target = e.recorded
		}

		s.pushCommand(q)
	}
	return len(commands), CodeSuccess
}

// pushCommand appends a command. It reuses the memory of completed commands.
func (s *emStream) pushCommand(q emCommand) {
	switch {
	case s.head == len(s.queue):
		s.queue, s.head, s.params = s.queue[:0], 0, s.params[:0]
	case len(s.queue) == cap(s.queue) && s.head > len(s.queue)/2:
		s.queue = s.queue[:copy(s.queue, s.queue[s.head:])]
		s.head = 0
	}

	// The caller refills its submission while these commands run, so copy their parameters. A graph keeps its own.
	if len(q.params) > 0 && !q.inGraph {
		if len(s.params)+len(q.params) > cap(s.params) { // running commands keep the old memory
			s.params = make([]byte, 0, max(4<<10, 2*len(q.params)))
		}
		n := len(s.params)
		s.params = append(s.params, q.params...)
		q.params = s.params[n:len(s.params):len(s.params)]
	}

	s.queue = append(s.queue, q)
}

func (m *emulated) enqueueGraph(at time.Duration, cmd *command) Code {
	g, ok := m.graphs[cmd.a]
	if !ok {
		return CodeInvalidHandle
	}
	if f := m.faultAt("graph"); f.Code != CodeSuccess {
		return f.Code
	}
	_, c := m.enqueueCommands(at, g.commands, g.params, true)
	return c
}

func (m *emulated) capture(stream uint64, commands []command, params []byte) (uint64, Code) {
	c := m.enterCall("capture")
	defer m.mu.Unlock()
	if c != CodeSuccess {
		return 0, c
	}

	if m.streams[stream] == nil {
		return 0, CodeInvalidHandle
	}
	for i := range commands {
		if commands[i].op == opGraph {
			return 0, CodeNotSupported
		}
	}

	// Copy, because the caller refills its submission.
	h := m.newHandle()
	m.graphs[h] = emGraph{commands: append([]command(nil), commands...), params: append([]byte(nil), params...)}
	return h, CodeSuccess
}

func (m *emulated) freeGraph(h uint64) Code {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.graphs, h)
	return CodeSuccess
}
