package swarm

import (
	"fmt"

	"downbeat.dev/core/invariants"
)

// checker observes all messages through the engine's ports and keeps the first violation. The embedded observer
// checks the rules of every scheduler (C1 to C5); the checker itself checks the promises of the engine's sessions.
type checker struct {
	invariants.Observer
	c      *Cluster
	err    error
	bursts int // submitted bursts
}

func (k *checker) watchCluster(c *Cluster) {
	k.c = c
	k.Object = k.fail
}

// book is the checker's account of one life of a scheduler.
type book struct {
	sessions   map[uint32]*frontSession // by number on the wire
	strays     uint64
	duplicates uint64
	maybe      uint64 // duplicates that may or may not count
	served     uint64
}

func (k *checker) fail(format string, a ...any) {
	if k.err == nil {
		k.err = fmt.Errorf("at %.6f ms: "+format, append([]any{float64(k.c.now) / 1e6}, a...)...)
	}
}

// checkEnd checks that nothing is left when everything should have ended and all sessions have closed.
func (k *checker) checkEnd() {
	// Every call ends by its deadline plus a grace, whatever became of its request.
	for _, f := range k.c.fronts {
		for i := range f.calls {
			if f.calls[i].live && !f.dead {
				k.fail("C2: call %d of frontend %d never ended", i+1, f.index)
			}
		}
	}

	// Compare counters before the sessions close, since closing changes the queues.
	for _, s := range k.c.schedulers {
		k.checkCounters(s)
		k.c.report.Strays += int(s.book.strays)
		k.c.report.Duplicates += int(s.book.duplicates)
	}

	// After all sessions have closed, the engine must hold nothing of them.
	for _, b := range k.c.backs {
		b.closeLinks()
	}

	for _, f := range k.c.fronts {
		f.closeLinks()
	}

	for _, s := range k.c.schedulers {
		if st := s.engine.Stats(); st.Frontends != 0 || len(st.GPUs) != 0 || st.Queued != 0 {
			k.fail("C7: %d frontends, %d gpus and %d requests when all have gone", st.Frontends, len(st.GPUs), st.Queued)
		}
	}
}

// checkCounters compares a scheduler's counters with the messages through its ports.
func (k *checker) checkCounters(sch *scheduler) {
	book := &sch.book
	waiting, maybe := 0, 0 // invalid submits may have a budget of an hour, and their Cancel may be lost
	for _, s := range book.sessions {
		for i := range s.keys {
			x := &s.keys[i]
			ahead := x.Deadline > int64(k.c.now)
			if x.MaybeBy > int64(k.c.now) && !s.closed {
				maybe += x.Maybe
			}
			if x.Queued > 0 && ahead {
				waiting++
			} else if x.Queued > 0 || x.Running != 0 {
				k.fail("C2: request %d of frontend %d never ended: %+v", i+1, s.f.index, *x)
			}
		}
	}

	st := sch.engine.Stats()
	served := uint64(0)
	for i := range st.Models {
		served += st.Models[i].Served
	}

	for _, g := range st.GPUs {
		if g.Running {
			k.fail("C7: %s runs a batch when all have ended", g.Name)
		}
	}

	// The count is a range if the checker cannot know whether a request had ended when its duplicate arrived.
	if st.Queued < waiting || st.Queued > waiting+maybe || served != book.served || st.Strays != book.strays ||
		st.Duplicates < book.duplicates || st.Duplicates > book.duplicates+book.maybe {
		k.fail("C7: queued %d, served %d, strays %d, duplicates %d; want %d, %d, %d, %d",
			st.Queued, served, st.Strays, st.Duplicates, waiting, book.served, book.strays, book.duplicates)
	}
}
