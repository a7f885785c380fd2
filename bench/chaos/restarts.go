//go:build linux

package chaos

import (
	"fmt"
	"syscall"
	"time"

	"downbeat.dev/bench/chaos/lan"
)

// restartExperiments kill, pause and restart parts.
func restartExperiments() []Experiment {
	return []Experiment{
		{Name: "frontend-restarts-unheard", Short: true, Packets: true, Promise: "no answer reaches another process than the one that asked", Run: restartUnheard},
		{Name: "backend-killed", Short: true, Promise: "requests of a killed backend go to another", Run: func(w *World) Observation { return killBackends(w, 3) }},
		{Name: "backend-terminated", Promise: "SIGTERM of a backend loses nothing", Run: terminateBackends},
		{Name: "backend-paused", Promise: "a backend that hangs costs only the requests that it holds", Run: pauseBackend},
		{Name: "frontends-killed", Promise: "killed frontends do not affect the others", Run: killFrontends},
		{Name: "frontend-paused", Promise: "a paused frontend does not affect the others", Run: pauseFrontend},
		{Name: "power-cut", Packets: true, Promise: "parts may return in any order", Run: powerCut},
	}
}

// restartUnheard cuts a host's power and starts another process on its address, four times (finding A).
func restartUnheard(w *World) Observation {
	// A batch takes 400 ms or more, so that results are always under way when the host dies.
	m := Model{Name: "long", Bytes: 64, PerItem: time.Millisecond, Fixed: 400 * time.Millisecond, BatchMax: 16, SLO: 3 * time.Second}
	w.StartSchedulers(1)
	w.StartBackends(1, w.Repository("models", m))
	l := Load{m, 25, 3 * time.Second}
	c := w.StartCaller(0, l)

	var o Observation
	lost := 0
	for range 4 {
		time.Sleep(time.Duration(600+w.Random.IntN(400)) * time.Millisecond)

		// Cut both links before the kill: as in a power cut, the peers receive neither a FIN nor a reset.
		w.harm(c.host, schedulerHost, lan.Harm{Cut: true})
		w.harm(c.host, backendHost, lan.Harm{Cut: true})
		c.Kill()
		check(w.lan.Remove(c.host))
		check(w.lan.Add(c.host))
		w.harm(c.host, schedulerHost, lan.Harm{})
		w.harm(c.host, backendHost, lan.Harm{})

		// The new process has the old address. An answer for its predecessor would be a foreign one here.
		c = w.startCaller(0, l)
		c.awaitReady()
		c.Burst(30)
		time.Sleep(700 * time.Millisecond)
		lost += w.Ledger.Reasons(c.number, 0, now())["input_unavailable"]
	}
	fallSilent(3*time.Second, c)
	o.Measures = []Measure{atMost("foreign input_unavailable", float64(lost), 0)}
	return o
}

// killBackends repeatedly kills one of two backends, which returns after 1 s.
func killBackends(w *World, kills int) Observation {
	m := light(64)
	models := w.Repository("models", m)
	w.StartSchedulers(1)

	all := w.StartBackends(2, models)
	c := w.StartCaller(0, Load{m, 300, 100 * time.Millisecond})

	var o Observation
	first := now()
	for range kills {
		time.Sleep(time.Duration(500+w.Random.IntN(300)) * time.Millisecond)
		i := w.Random.IntN(2)
		from := now()
		w.replace(all, i, syscall.SIGKILL, time.Second, func() *process { return w.StartBackend(i, models) })
		o.recovered(c, from)
	}
	fallSilent(200*time.Millisecond, c)

	// The bar is one full batch: requests that were still queued have another backend.
	o.Measures = []Measure{atMost("lost per kill", o.countLost(c, first)/float64(kills), 16)}
	return o
}

// replace ends a part by a signal and restarts it after a while.
func (w *World) replace(all []*process, i int, how syscall.Signal, away time.Duration, start func() *process) {
	if how == syscall.SIGKILL {
		all[i].kill()
	} else {
		check(all[i].stop(patience))
	}
	time.Sleep(away)
	all[i] = start()
}

func terminateBackends(w *World) Observation {
	m := light(64)
	models := w.Repository("models", m)
	w.StartSchedulers(1)

	all := w.StartBackends(2, models)
	c := w.StartCaller(0, Load{m, 250, 150 * time.Millisecond})

	first := now()
	for i := range 4 {
		time.Sleep(500 * time.Millisecond)
		w.replace(all, i%2, syscall.SIGTERM, 0, func() *process { return w.StartBackend(i%2, models) })
	}

	fallSilent(300*time.Millisecond, c)
	var o Observation
	o.Measures = []Measure{atMost("lost", o.countLost(c, first), 0)}
	return o
}

func pauseBackend(w *World) Observation {
	m := light(64)
	w.StartSchedulers(1)
	all := w.StartBackends(2, w.Repository("models", m))
	c := w.StartCaller(0, Load{m, 250, 100 * time.Millisecond})

	time.Sleep(time.Second)
	from := now()

	// The kernel keeps a stopped process's connections open, so only silence shows that it hangs.
	all[0].signal(syscall.SIGSTOP)
	time.Sleep(4 * time.Second)
	all[0].signal(syscall.SIGCONT)
	time.Sleep(time.Second)
	fallSilent(200*time.Millisecond, c)

	var o Observation
	o.recovered(c, from)
	o.Measures = []Measure{atMost("lost", o.countLost(c, from), 40)}
	return o
}

func killFrontends(w *World) Observation {
	m := light(64)
	w.StartSchedulers(1)
	w.StartBackends(2, w.Repository("models", m))

	steady := w.StartCaller(0, Load{m, 200, 100 * time.Millisecond})
	w.addHost(callerHost + 1)
	from := now()
	for range 6 {
		c := w.startCaller(1, Load{m, 200, 100 * time.Millisecond})
		c.awaitReady()
		time.Sleep(time.Duration(200+w.Random.IntN(200)) * time.Millisecond)

		// The burst leaves queued requests that no caller waits for.
		c.Burst(20)
		c.Kill()
	}

	fallSilent(200*time.Millisecond, steady)
	return Observation{Measures: []Measure{atLeast("steady good %", steady.between(from, now()).Percent(), 99)}}
}

func pauseFrontend(w *World) Observation {
	m := light(64)
	w.StartSchedulers(1)
	w.StartBackends(2, w.Repository("models", m))

	steady := w.StartCaller(0, Load{m, 200, 100 * time.Millisecond})
	sick := w.StartCaller(1, Load{m, 100, 100 * time.Millisecond})
	time.Sleep(time.Second)

	from := now()
	sick.Pause(5 * time.Second)
	to := now()
	time.Sleep(500 * time.Millisecond)
	fallSilent(200*time.Millisecond, steady, sick)
	return Observation{Measures: []Measure{atLeast("steady good %", steady.between(from, to).Percent(), healthyBar)}}
}

// powerCut kills every part except the caller, and restarts them in an order drawn from the seed.
func powerCut(w *World) Observation {
	m := light(64)
	models := w.Repository("models", m)
	scheduler := w.StartSchedulers(1)[0]
	backends := w.StartBackends(2, models)
	c := w.StartCaller(0, Load{m, 200, 100 * time.Millisecond})

	// Everything dies at once, under load.
	time.Sleep(time.Second)
	scheduler.kill()
	for _, b := range backends {
		b.kill()
	}

	ready := make(chan *process, 3)
	for _, part := range w.Random.Perm(3) {
		time.Sleep(time.Duration(w.Random.IntN(500)) * time.Millisecond)
		if part == 2 {
			ready <- w.StartScheduler(0)
		} else {
			ready <- w.startBackend(part, models)
		}
	}

	// Goodput counts from the last start on.
	from := now()
	for range 3 {
		if p := <-ready; p.name != fmt.Sprint("scheduler ", 0) {
			check(p.awaitLine("scheduler connected", patience))
		}
	}
	time.Sleep(2 * time.Second)

	fallSilent(200*time.Millisecond, c)
	var o Observation
	o.Measures = []Measure{atMost("back after the last start, ms", toMilliseconds(o.recovered(c, from)), 1000)}
	return o
}
