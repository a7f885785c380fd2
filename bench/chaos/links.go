//go:build linux

package chaos

import (
	"fmt"
	"syscall"
	"time"

	"downbeat.dev/bench/chaos/lan"
)

// healthyBar is the percentage of good requests that a healthy caller must keep beside a faulty one.
const healthyBar = 99

// sickness is a fault of one caller's data links.
type sickness struct {
	name  string
	bytes int
	rate  float64 // of the faulty caller
	short bool
	harm  func(w *World, host int, sick bool)
}

// toBackends harms the ways between a host and some backends.
func toBackends(h lan.Harm, backends ...int) func(*World, int, bool) {
	return func(w *World, host int, sick bool) {
		for _, b := range backends {
			if sick {
				w.harm(host, backendHost+b, h)
			} else {
				w.harm(host, backendHost+b, lan.Harm{})
			}
		}
	}
}

// linkExperiments check that a caller with faulty data links does not affect a healthy one (finding B).
func linkExperiments() []Experiment {
	// The link dies in one direction only, so one side still hears the other.
	cutOneWay := func(in bool) func(*World, int, bool) {
		return func(w *World, host int, sick bool) {
			from, to := host, backendHost
			if in {
				from, to = to, from
			}
			w.lan.Set(from, to, lan.Harm{Cut: sick})
		}
	}

	var all []Experiment
	for _, s := range []sickness{
		{"slow-200k-64KiB", 64 << 10, 40, false, toBackends(lan.Harm{Rate: 200_000}, 0, 1)},
		{"slow-20k-4KiB-60", 4 << 10, 60, false, toBackends(lan.Harm{Rate: 20_000}, 0, 1)},
		{"slow-20k-4KiB-20", 4 << 10, 20, false, toBackends(lan.Harm{Rate: 20_000}, 0, 1)},
		{"slow-20k-4KiB-5", 4 << 10, 5, false, toBackends(lan.Harm{Rate: 20_000}, 0, 1)},
		{"dark-both", 64, 300, true, toBackends(lan.Harm{Cut: true}, 0, 1)},
		{"dark-one", 64, 300, false, toBackends(lan.Harm{Cut: true}, 0)},
		{"dark-from-frontend", 64, 300, false, cutOneWay(false)},
		{"dark-to-frontend", 64, 300, false, cutOneWay(true)},
		{"delay-40ms", 64, 200, false, toBackends(lan.Harm{Delay: 40 * time.Millisecond}, 0, 1)},
		{"loss-5", 64, 200, false, toBackends(lan.Harm{Loss: 0.05}, 0, 1)},
	} {
		all = append(all, Experiment{Name: "frontend-" + s.name, Packets: true, Short: s.short,
			Promise: "a frontend behind a faulty link does not affect the others", Run: s.runSick})
	}

	return append(all,
		Experiment{Name: "frontend-hangs-overloaded", Packets: true, Promise: "a frontend that hangs with a queue does not affect the others",
			Run: func(w *World) Observation { return overloadedEnd(w, false) }},
		Experiment{Name: "frontend-killed-overloaded", Packets: true, Promise: "a frontend that dies with a queue does not affect the others",
			Run: func(w *World) Observation { return overloadedEnd(w, true) }})
}

func (s sickness) runSick(w *World) Observation {
	m := light(s.bytes)

	w.StartSchedulers(1)
	w.StartBackends(2, w.Repository("models", m))
	sick := w.StartCaller(0, Load{m, s.rate, 100 * time.Millisecond})
	healthy := w.StartCaller(1, Load{m, 200, 100 * time.Millisecond})
	time.Sleep(1500 * time.Millisecond)

	from := now()
	s.harm(w, sick.host, true)
	time.Sleep(6 * time.Second)
	to := now()
	s.harm(w, sick.host, false)
	time.Sleep(4 * time.Second) // a frontend that is repeatedly suspect is asked every 2 s
	end := now()
	fallSilent(200*time.Millisecond, sick, healthy)

	var o Observation
	o.recovered(sick, to)

	o.Measures = []Measure{
		atLeast("healthy good %", healthy.between(from, to).Percent(), healthyBar),
		atLeast("before %", healthy.between(from-int64(time.Second), from).Percent(), 0),
		atLeast("sick, well again %", sick.between(end-int64(time.Second), end).Percent(), 95),
	}
	return o
}

// overloadedEnd pauses or kills a caller with queued requests.
func overloadedEnd(w *World, kill bool) Observation {
	m := light(64)
	m.SLO = 500 * time.Millisecond
	w.StartSchedulers(1)

	w.StartBackends(2, w.Repository("models", m))
	sick := w.StartCaller(0, Load{m, 1700, 500 * time.Millisecond})
	healthy := w.StartCaller(1, Load{m, 200, 500 * time.Millisecond})
	time.Sleep(2 * time.Second)

	from := now()
	if kill {
		sick.Kill()
	} else {
		// A paused process answers late by design, which the ledger must not count.
		w.Ledger.Excuse(sick.number)
		sick.process.signal(syscall.SIGSTOP)
	}
	time.Sleep(2 * time.Second)
	to := now()
	if !kill {
		sick.process.signal(syscall.SIGCONT)
		sick.Rate(0)
	}
	fallSilent(time.Second, healthy)

	// Until then the overload affects both callers; queued requests may stay until their deadline.
	settled := from + int64(500*time.Millisecond)
	return Observation{Measures: []Measure{
		atLeast("healthy good % from 0.5 s on", healthy.between(settled, to).Percent(), healthyBar),
		atLeast("healthy good % at once", healthy.between(from, settled).Percent(), 80)}}
}

// slowReads checks that a caller's Infer returns at its deadline however slowly backends get its input (finding C).
func slowReads(rate int) Experiment {
	return Experiment{Name: fmt.Sprintf("infer-8MiB-at-%dMBps", rate/1_000_000), Packets: true, Promise: "Infer returns at its deadline plus grace, however slow a reader is",
		Run: func(w *World) Observation {
			m := light(8 << 20)
			m.BatchMax, m.SLO = 2, 500*time.Millisecond
			w.StartSchedulers(1)

			w.StartBackends(1, w.Repository("models", m))
			caller := w.StartCaller(0, Load{m, 2, 500 * time.Millisecond})
			time.Sleep(time.Second)

			// The input of 8 MiB cannot cross at this rate within 500 ms; afterwards nothing crosses at all.
			w.harm(caller.host, backendHost, lan.Harm{Rate: rate})
			time.Sleep(4 * time.Second)
			w.harm(caller.host, backendHost, lan.Harm{Cut: true})
			time.Sleep(2 * time.Second)

			w.harm(caller.host, backendHost, lan.Harm{})
			healed := now()
			time.Sleep(3 * time.Second)
			fallSilent(time.Second, caller)

			// The first second after the repair belongs to the links' own recovery.
			return Observation{Measures: []Measure{atLeast("good after healing %", caller.between(healed+int64(time.Second), now()).Percent(), 80)}}
		}}
}
