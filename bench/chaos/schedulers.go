//go:build linux

package chaos

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"downbeat.dev/bench/chaos/lan"
)

// schedulerExperiments kill, pause or disconnect the scheduler, or make it hand over to a standby.
func schedulerExperiments() []Experiment {
	return []Experiment{
		{Name: "scheduler-terminated", Promise: "SIGTERM of the scheduler loses nothing that has budget left", Run: func(w *World) Observation { return restartScheduler(w, syscall.SIGTERM) }},
		{Name: "scheduler-killed", Promise: "a killed scheduler loses nothing that has budget left", Run: func(w *World) Observation { return restartScheduler(w, syscall.SIGKILL) }},
		{Name: "scheduler-paused", Promise: "a paused scheduler does not count its absence as silence of others", Run: pauseScheduler},
		{Name: "scheduler-gone", Promise: "requests lost in an outage name it as the reason", Run: schedulerGone},
		{Name: "scheduler-frontend-cut", Packets: true, Promise: "silence is noticed within 500 ms, and goodput returns with the link", Run: func(w *World) Observation { return cutScheduler(w, callerHost) }},
		{Name: "scheduler-backend-cut", Packets: true, Promise: "a backend that is cut off costs only the requests that it holds", Run: func(w *World) Observation { return cutScheduler(w, backendHost) }},
		{Name: "scheduler-thundering", Promise: "all callers may reconnect at once", Run: thunder},
		{Name: "leader-killed", Short: true, Promise: "a standby takes over within 100 ms, and no request is lost that outlasts it", Run: func(w *World) Observation { return endLeaders(w, syscall.SIGKILL, 6) }},
		{Name: "leader-terminated", Promise: "a leader that stops in order loses nothing", Run: func(w *World) Observation { return endLeaders(w, syscall.SIGTERM, 4) }},
		{Name: "leader-paused", Promise: "a leader that hangs is replaced, and resumes as a standby", Run: func(w *World) Observation { return endLeaders(w, syscall.SIGSTOP, 3) }},
		{Name: "leader-cut-off", Packets: true, Promise: "a leader that no peer hears is replaced", Run: cutLeaderOff},
		{Name: "leader-hears-no-backend", Packets: true, Promise: "a leader that hears no backend ends no request that its successor can serve", Run: deafenLeader},
	}
}

// restartScheduler ends the scheduler eight times; each time it is down for 0.2 s (finding G).
func restartScheduler(w *World, how syscall.Signal) Observation {
	m := light(64)
	all := w.StartSchedulers(1)
	w.StartBackends(2, w.Repository("models", m))

	// Budgets of 3 s outlast every absence of 0.2 s, so no request may be lost.
	c := w.StartCaller(0, Load{m, 200, 3 * time.Second})

	first := now()
	for range 8 {
		time.Sleep(time.Duration(600+w.Random.IntN(300)) * time.Millisecond)
		w.replace(all, 0, how, 200*time.Millisecond, func() *process { return w.StartScheduler(0) })
	}
	time.Sleep(time.Second)
	fallSilent(3*time.Second, c)

	var o Observation
	o.Measures = []Measure{atMost("lost", o.countLost(c, first), 0)}
	return o
}

func pauseScheduler(w *World) Observation {
	m := light(64)
	scheduler := w.StartSchedulers(1)[0]
	w.StartBackends(2, w.Repository("models", m))
	c := w.StartCaller(0, Load{m, 200, 100 * time.Millisecond})

	time.Sleep(time.Second)
	scheduler.signal(syscall.SIGSTOP)
	time.Sleep(4500 * time.Millisecond)
	scheduler.signal(syscall.SIGCONT)

	// Count from the scheduler's return: requests missed before that are due to its absence.
	from := now()
	time.Sleep(2500 * time.Millisecond)
	fallSilent(200*time.Millisecond, c)

	var o Observation
	back := o.recovered(c, from)

	// The scheduler must not count its own pause as the backends' silence.
	blamed := strings.Count(scheduler.log.String(), "not reported done in time")
	o.Measures = []Measure{atMost("backends blamed", float64(blamed), 0), atMost("back, ms", toMilliseconds(back), 1000)}
	return o
}

// schedulerGone counts requests whose end does not name the outage as the cause (finding I).
func schedulerGone(w *World) Observation {
	m := light(64)
	scheduler := w.StartSchedulers(1)[0]
	w.StartBackends(1, w.Repository("models", m))
	c := w.StartCaller(0, Load{m, 200, 100 * time.Millisecond})
	time.Sleep(500 * time.Millisecond)

	scheduler.kill()
	from := now()

	time.Sleep(2 * time.Second)
	fallSilent(200*time.Millisecond, c)

	silent := 0
	for reason, n := range w.Ledger.Reasons(c.number, from, now()) {
		if !strings.HasSuffix(reason, "/explained") {
			silent += n
		}
	}
	return Observation{Measures: []Measure{atMost("without the cause", float64(silent), 0)}}
}

// cutScheduler disconnects a host from the scheduler for 4 s (finding J).
func cutScheduler(w *World, host int) Observation {
	m := light(64)

	w.StartSchedulers(1)
	w.StartBackends(2, w.Repository("models", m))
	sick := w.StartCaller(0, Load{m, 150, 100 * time.Millisecond})
	other := w.StartCaller(1, Load{m, 150, 100 * time.Millisecond})
	time.Sleep(time.Second)

	from := now()
	w.harm(host, schedulerHost, lan.Harm{Cut: true})
	time.Sleep(4 * time.Second)
	w.harm(host, schedulerHost, lan.Harm{})

	healed := now()
	time.Sleep(4 * time.Second)
	fallSilent(200*time.Millisecond, sick, other)

	var o Observation
	o.Measures = []Measure{
		atMost("back after healing, ms", toMilliseconds(o.recovered(sick, healed)), 1000),
		atLeast("others' good %", other.between(from, now()).Percent(), healthyBar)}
	return o
}

// thunder makes twelve callers reconnect at the same time.
func thunder(w *World) Observation {
	m := light(64)
	all := w.StartSchedulers(1)
	w.StartBackends(2, w.Repository("models", m))

	for i := range 12 {
		w.StartCaller(i, Load{m, 15, 100 * time.Millisecond})
	}
	time.Sleep(500 * time.Millisecond)

	// Every caller loses its session at the same time and dials again.
	all[0].kill()
	time.Sleep(300 * time.Millisecond)
	w.StartScheduler(0)
	from := now()
	time.Sleep(4 * time.Second)

	var o Observation
	fallSilent(200*time.Millisecond, w.callers...)
	for _, c := range w.callers {
		o.recovered(c, from)
	}
	o.Measures = []Measure{atMost("slowest back, ms", toMilliseconds(slices.Max(o.Recoveries)), 1500)}
	return o
}

// leader returns the scheduler that logged the highest epoch; -1: none.
func leader(all []*process) int {
	// Epochs only grow, so the scheduler with the highest epoch leads now.
	found, highest := -1, 0
	for i, p := range all {
		if epoch := lastEpoch(p.log.String()); epoch > highest {
			found, highest = i, epoch
		}
	}
	return found
}

var leads = regexp.MustCompile(`this scheduler leads".* epoch=(\d+)`)

// lastEpoch returns the latest epoch in which a scheduler logged that it leads; 0: it never did.
func lastEpoch(log string) int {
	all := leads.FindAllStringSubmatch(log, -1)
	if len(all) == 0 {
		return 0
	}
	epoch, _ := strconv.Atoi(all[len(all)-1][1]) // digits
	return epoch
}

func awaitLeader(all []*process, not int) int {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if l := leader(all); l >= 0 && l != not {
			return l
		}
	}
	check(fmt.Errorf("no scheduler leads within %v", patience))
	return -1
}

// startCluster starts three schedulers, two backends and two callers: one whose budgets outlast a change of leader,
// and one that shows when goodput recovers.
func startCluster(w *World) (all []*process, lasting, quick *Caller) {
	m := light(64)
	all = w.StartSchedulers(3)
	w.StartBackends(2, w.Repository("models", m))
	awaitLeader(all, -1)

	lasting = w.StartCaller(0, Load{m, 150, 2 * time.Second})
	quick = w.StartCaller(1, Load{m, 250, 60 * time.Millisecond})
	time.Sleep(time.Second)
	return all, lasting, quick
}

// endLeaders repeatedly kills, ends or stops the leader.
func endLeaders(w *World, how syscall.Signal, times int) Observation {
	all, lasting, quick := startCluster(w)

	var o Observation
	var ended []int64
	for range times {
		time.Sleep(time.Duration(900+w.Random.IntN(300)) * time.Millisecond)
		old := leader(all)
		ended = append(ended, now())
		all[old].signal(how)
		awaitLeader(all, old)

		// The new leader needs some requests to decide about before the old one returns.
		time.Sleep(500 * time.Millisecond)
		if how == syscall.SIGSTOP {
			// The old leader resumes in an epoch that is over, and must stand by.
			time.Sleep(2 * time.Second)
			all[old].signal(syscall.SIGCONT)
			time.Sleep(500 * time.Millisecond)
		} else {
			<-all[old].ended
			all[old] = w.StartScheduler(old)
		}
	}

	time.Sleep(500 * time.Millisecond)
	fallSilent(2500*time.Millisecond, lasting, quick)
	for _, at := range ended {
		o.recovered(quick, at)
	}

	// A dying leader closes its connections, which peers notice at once.
	bar := 100.0
	if how == syscall.SIGSTOP {
		bar = 800 // silence is noticed after 500 ms
	}
	o.Measures = []Measure{atMost("lost of those that outlast it", o.countLost(lasting, 0), 0),
		atMost("slowest back, ms", toMilliseconds(slices.Max(o.Recoveries)), bar)}
	return o
}

// cutLeaderOff disconnects the leader from backends and callers.
func cutLeaderOff(w *World) Observation {
	return cutLeader(w, func(leader int, h lan.Harm) {
		for _, host := range []int{backendHost, backendHost + 1, callerHost, callerHost + 1} {
			w.harm(leader, host, h)
		}
	})
}

// deafenLeader drops all messages from backends to the leader. The leader gives the backends up and has none, before
// they notice.
func deafenLeader(w *World) Observation {
	return cutLeader(w, func(leader int, h lan.Harm) {
		for _, host := range []int{backendHost, backendHost + 1} {
			w.lan.Set(host, leader, h)
		}
	})
}

// cutLeader harms the leader's ways to its peers, but not to the election's record.
func cutLeader(w *World, harm func(leader int, h lan.Harm)) Observation {
	all, lasting, quick := startCluster(w)
	old := leader(all)
	from := now()

	// The old leader still reaches the election's record. It is replaced because most GPUs report that they have lost
	// it.
	harm(schedulerHost+old, lan.Harm{Cut: true})
	awaitLeader(all, old)
	time.Sleep(2 * time.Second)
	harm(schedulerHost+old, lan.Harm{})

	time.Sleep(time.Second)
	fallSilent(2200*time.Millisecond, lasting, quick)

	var o Observation
	back := o.recovered(quick, from)
	o.Measures = []Measure{atMost("lost of those that outlast it", o.countLost(lasting, 0), 0), atMost("back, ms", toMilliseconds(back), 1000)}
	return o
}
