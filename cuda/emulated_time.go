package cuda

import (
	"slices"
	"time"
	"unsafe"
)

// The engines work in parallel, each on one command at a time, like a GPU's two copy engines and its processors.
// Records, waits and the start of a graph use no engine.
const (
	engineIn = iota
	engineOut
	engineCompute
	engineCount
)

type emEngine struct {
	stream    *emStream // nil when idle
	begin     time.Duration
	end       time.Duration
	performed bool // its bytes have moved
	hung      bool
	until     <-chan struct{} // ends the hang
}

// readClock returns the current time; call it under mu.
func (m *emulated) readClock() time.Duration {
	if !m.cfg.Virtual {
		m.now = max(m.now, time.Since(m.start))
	}
	return m.now
}

// beginReady starts every command that can start, and handles those that need no engine; call it under mu. A command
// that would start after the next end waits for that end, which may let an earlier command start.
func (m *emulated) beginReady() {
	for again := true; again && m.lost == CodeSuccess; {
		again = false
		_, horizon := m.nextEnd()

		// For each engine, find the stream whose head can start first.
		var best [engineCount]*emStream
		for i := 0; i < len(m.order); i++ {
			s := m.order[i]

			// A freed stream is removed after its last command.
			if s.head == len(s.queue) && s.freed {
				m.order = slices.Delete(m.order, i, i+1)
				i--
			}
			if s.busy || s.head == len(s.queue) {
				continue
			}

			cmd := &s.queue[s.head]
			engine := engineOf(cmd.op)
			if engine < 0 {
				again = m.markHead(s, cmd) || again
				continue
			}

			e, b := &m.engines[engine], best[engine]
			if e.stream == nil && s.startTime() <= horizon && (b == nil || s.precedes(b, e.end)) {
				best[engine] = s
			}
		}
		if again {
			continue // a record or a wait may have let an earlier command start
		}

		for engine, s := range best {
			if s != nil {
				m.runHead(engine, s)
			}
		}
	}
}

func engineOf(op uint32) int {
	switch op {
	case opCopyIn:
		return engineIn
	case opCopyOut:
		return engineOut
	case opRecord, opWait:
		return -1
	}
	return engineCompute
}

// markHead performs a record or a wait at the head of s; it returns false if the wait must continue.
func (m *emulated) markHead(s *emStream, cmd *emCommand) bool {
	e := m.events[cmd.a]

	// A freed event delays no stream.
	if e != nil && cmd.op == opWait && e.done < cmd.target {
		return false
	}

	s.ready = s.startTime()
	switch {
	case e == nil:
	case cmd.op == opWait:
		s.ready = max(s.ready, e.at)
	case cmd.target > e.done:
		e.done, e.at = cmd.target, s.ready
	}
	s.head++
	return true
}

var opNames = [...]string{opCopyIn: "copy in", opCopyOut: "copy out", opCopy: "copy", opFill: "fill", opLaunch: "launch"}

// runHead starts the head of s on an engine.
func (m *emulated) runHead(engine int, s *emStream) {
	cmd := &s.queue[s.head]
	f := m.faultAt(opNames[cmd.op])
	if f.Code != CodeSuccess {
		if m.lost == CodeSuccess {
			m.lost = CodeLaunchFailed // as in CUDA, the failure of a command shows later and makes the context unusable
		}
		return
	}

	begin := max(s.startTime(), m.engines[engine].end)
	s.busy = true
	m.engines[engine] = emEngine{stream: s, begin: begin, end: begin + m.durationOf(cmd) + f.Slow, hung: f.Hang, until: f.Until}
}

func (m *emulated) durationOf(cmd *emCommand) time.Duration {
	// The commands of a graph were prepared at its capture; the model charges a quarter of the time for the rest.
	over := m.cfg.CommandTime
	if cmd.inGraph {
		over /= 4
	}

	bytes := func(rate float64) time.Duration {
		return over + time.Duration(float64(cmd.n)/rate*1e9)
	}

	switch cmd.op {
	case opCopyIn:
		return bytes(m.cfg.CopyInBandwidth / m.pageableFactor(cmd.b, cmd.n))
	case opCopyOut:
		return bytes(m.cfg.CopyOutBandwidth / m.pageableFactor(cmd.a, cmd.n))
	case opLaunch:
		if m.cfg.KernelTime == nil {
			return over + 10*time.Microsecond
		}
		return over + m.cfg.KernelTime(m.launchOf(cmd))
	}
	return bytes(m.cfg.DeviceBandwidth)
}

// pageableFactor returns how much slower a copy of host memory at p is.
func (m *emulated) pageableFactor(p, n uint64) float64 {
	for start, b := range m.host {
		if b.pinned && uint64(start) <= p && p+n <= uint64(start)+uint64(len(b.mem)) {
			return 1
		}
	}
	return m.cfg.PageableFactor
}

func (m *emulated) launchOf(cmd *emCommand) Launch {
	return Launch{Kernel: m.kernels[cmd.a], Params: cmd.params,
		Grid: Dim{cmd.grid[0], cmd.grid[1], cmd.grid[2]}, Block: Dim{cmd.block[0], cmd.block[1], cmd.block[2]}}
}

// hostBytes returns host memory that a command names; the caller keeps it alive (see Submission).
func hostBytes(p, n uint64) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}
