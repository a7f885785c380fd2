package engine

import (
	"runtime"
	"sync/atomic"
	"time"

	"downbeat.dev/core/sched"
)

// spinDefault is how long before a wake-up a loop stops sleeping and spins: about the lateness of a kernel timer.
// Where sleeps end later, as in a virtual machine whose host must wake a halted processor, the loop stops sleeping
// sooner, but spins for at most an eighth of the wait.
const (
	spinDefault = 60 * time.Microsecond
	spinShare   = 8
	lateMost    = 400 * time.Microsecond // a sleep later than this was delayed by more than its timer
)

// Loop runs one core's share of the partitions and rankers when their wake-up is due. Poll never blocks.
type Loop struct {
	e       *Engine
	parts   []*partition
	rankers atomic.Pointer[[]*ranker] // the registry appends
	spin    sched.Duration
	asleep  atomic.Int64   // sched.Time at which the sleeping loop will look again; 0: it is awake
	naps    atomic.Uint64  // number of sleeps; for tests and metrics
	late    sched.Duration // lateness of sleeps; run's own, see learn
	sleeper sleeper
	spare   spare
}

func newLoop(e *Engine, _ int) (*Loop, error) {
	l := &Loop{e: e, spin: sched.Duration(max(0, e.o.Spin))}
	l.rankers.Store(new([]*ranker))
	if e.o.Manual {
		return l, nil
	}
	return l, l.sleeper.open()
}

// Poll runs the partitions and rankers that are due.
func (l *Loop) Poll(now sched.Time) (worked bool) {
	// The wake-up is read without the lock, since most of them are not due.
	for _, p := range l.parts {
		if sched.Time(p.wake.Load()) <= now {
			worked = true
			t := l.e.beginAt(&l.spare, now)
			p.enter(t)
			p.s.Advance(t.now)
			p.collectOutputs(l.e, t)
			p.mu.Unlock()
			l.e.finishTurn(t)
		}
	}

	for _, r := range *l.rankers.Load() {
		if sched.Time(r.wake.Load()) <= now {
			worked = true
			t := l.e.beginAt(&l.spare, now)
			r.enter(t)
			r.advance(l.e, t)
			r.mu.Unlock()
			l.e.finishTurn(t)
		}
	}
	return worked
}

// NextWake returns the latest time at which Poll must be called.
func (l *Loop) NextWake() sched.Time {
	at := sched.Never
	for _, p := range l.parts {
		at = min(at, sched.Time(p.wake.Load()))
	}
	for _, r := range *l.rankers.Load() {
		at = min(at, sched.Time(r.wake.Load()))
	}
	return at
}

// runLoop is the loop's thread: poll, sleep until shortly before the next wake-up, spin for the rest.
func (l *Loop) runLoop() {
	defer l.e.running.Done()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l.sleeper.precise()
	for !l.e.closed.Load() {
		if l.Poll(l.e.clock.Now()) {
			continue
		}
		l.waitUntilDue()
	}
}

// waitUntilDue returns when something is due or a wake-up was brought forward.
func (l *Loop) waitUntilDue() {
	// The spin covers the lateness of sleeps. It occupies a core, so it is limited to a small share of the wait.
	next := l.NextWake()
	now := l.e.clock.Now()
	spin := l.spin
	if spin > 0 && next != sched.Never {
		spin = max(spin, min(l.late, next.Sub(now)/spinShare))
	}
	if until := next.Add(-spin); until > now {
		l.asleep.Store(int64(next))
		// A wake-up that was brought forward before asleep was set did not wake the loop: check again.
		if l.NextWake() >= next && !l.e.closed.Load() {
			d := sleepMax
			if next != sched.Never {
				d = min(d, time.Duration(until-now))
			}
			l.naps.Add(1)
			if l.sleeper.sleep(d) {
				l.learnLateness(l.e.clock.Now().Sub(now) - sched.Duration(d))
			}
		}
		l.asleep.Store(0)
	}

	// A sleep would end too late for a wake-up this near: spin.
	for spin > 0 && !l.e.closed.Load() {
		now = l.e.clock.Now()
		if next = l.NextWake(); next <= now || next > now.Add(spin) {
			return
		}
	}
}

// learnLateness follows the lateness of sleeps. It rises by an eighth when a sleep ends later, and falls at a rate that
// leaves four in a thousand later than expected.
func (l *Loop) learnLateness(late sched.Duration) {
	if late > l.late {
		l.late = min(sched.Duration(lateMost), l.late+l.late/8+1000)
	} else {
		l.late -= l.late / 2000
	}
}

// sleepMax bounds a sleep, so that a lost wake-up costs at most this.
const sleepMax = 50 * time.Millisecond

// wakeBy wakes the loop if it would look later than at.
func (l *Loop) wakeBy(at sched.Time) {
	if a := l.asleep.Load(); a != 0 && int64(at) < a && l.asleep.CompareAndSwap(a, 0) {
		l.sleeper.wake()
	}
}

// wakeNow wakes the loop in any case.
func (l *Loop) wakeNow() {
	if !l.e.o.Manual {
		l.sleeper.wake()
	}
}

func (l *Loop) closeLoop() {
	if !l.e.o.Manual {
		l.sleeper.closeTimer()
	}
}
