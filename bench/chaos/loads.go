//go:build linux

package chaos

import (
	"time"

	"downbeat.dev/bench/chaos/lan"
)

// loadExperiments offer more than can be served, or harm the network for all.
func loadExperiments() []Experiment {
	everywhere := func(h lan.Harm, budget time.Duration, bar float64) func(*World) Observation {
		return func(w *World) Observation { return badNetwork(w, h, budget, bar) }
	}
	return []Experiment{
		{Name: "nothing-wrong", Promise: "without faults every request is good: the reference for the others", Run: nothingWrong},
		{Name: "overload", Promise: "goodput is flat under overload", Run: overload},
		{Name: "burst-20000", Promise: "a burst is accounted for to the last request", Run: burst},
		{Name: "delay-10ms-everywhere", Packets: true, Promise: "delay costs no more than its share of the deadlines", Run: everywhere(lan.Harm{Delay: 10 * time.Millisecond}, 250*time.Millisecond, 99)},
		{Name: "loss-1-everywhere", Packets: true, Promise: "lost packets cost their requests", Run: everywhere(lan.Harm{Loss: 0.01}, 100*time.Millisecond, 90)},
		{Name: "duplicates-everywhere", Packets: true, Promise: "duplicated packets cost nothing", Run: everywhere(lan.Harm{Duplicate: 0.2}, 100*time.Millisecond, 98)},
	}
}

func nothingWrong(w *World) Observation {
	m := light(64)

	w.StartSchedulers(1)
	w.StartBackends(2, w.Repository("models", m))
	c := w.StartCaller(0, Load{m, 300, 100 * time.Millisecond})
	time.Sleep(time.Second)

	// Leave out the first second: links form and batch sizes settle in it.
	from := now()
	time.Sleep(4 * time.Second)
	fallSilent(200*time.Millisecond, c)
	return Observation{Measures: []Measure{atLeast("good %", c.between(from, now()).Percent(), 99)}}
}

// overload compares the goodput of one GPU at five times its capacity (16 in 37 ms are 432 per second) with that at
// slightly more than its capacity. The two alternate, since the machine has other work.
func overload(w *World) Observation {
	const capacity = 432

	m := light(64)
	w.StartSchedulers(1)
	w.StartBackends(1, w.Repository("models", m))
	c := w.StartCaller(0, Load{m, capacity, 200 * time.Millisecond})

	goodAt := func(times float64) (good float64) {
		c.Rate(times * capacity)
		time.Sleep(time.Second)
		from := now()
		time.Sleep(3 * time.Second)
		to := now()
		// A request has 200 ms; the last ones must have ended before they are counted.
		time.Sleep(250 * time.Millisecond)
		return float64(c.between(from, to).Good)
	}

	var little, much float64
	for range 2 {
		little += goodAt(1.2)
		much += goodAt(5)
	}

	fallSilent(300*time.Millisecond, c)
	return Observation{Measures: []Measure{atLeast("at 5 times as % of at 1.2", 100*much/little, 97), atLeast("good/s at 5 times", much/6, 0)}}
}

func burst(w *World) Observation {
	m := light(64)

	w.StartSchedulers(1)
	w.StartBackends(2, w.Repository("models", m))
	c := w.StartCaller(0, Load{m, 100, time.Second})
	time.Sleep(time.Second)

	// With 1 s of budget, some requests of the burst are served and the rest are dropped, each with an answer.
	c.Burst(20000)
	time.Sleep(2500 * time.Millisecond)

	from := now()
	time.Sleep(time.Second)
	fallSilent(1200*time.Millisecond, c)
	return Observation{Measures: []Measure{atLeast("good % after it", c.between(from, now()).Percent(), 99)}}
}

// badNetwork applies h to the network between all hosts of the deployment for 5 s.
func badNetwork(w *World, h lan.Harm, budget time.Duration, bar float64) Observation {
	m := light(64)
	w.StartSchedulers(1)
	w.StartBackends(2, w.Repository("models", m))
	c := w.StartCaller(0, Load{m, 200, budget})
	time.Sleep(time.Second)

	// Harm every pair of hosts, so that no way around the bad network exists.
	hosts := []int{schedulerHost, backendHost, backendHost + 1, c.host}
	for i, a := range hosts {
		for _, b := range hosts[i+1:] {
			w.harm(a, b, h)
		}
	}
	time.Sleep(1500 * time.Millisecond) // time for the scheduler to notice

	from := now()
	time.Sleep(5 * time.Second)
	fallSilent(600*time.Millisecond, c)
	return Observation{Measures: []Measure{atLeast("good %", c.between(from, now()).Percent(), bar)}}
}
