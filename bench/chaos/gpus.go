//go:build linux

package chaos

import (
	"fmt"
	"strings"
	"time"

	"downbeat.dev/bench/chaos/lan"
)

// gpuExperiments check that a fault of one GPU costs at most that GPU's capacity (findings D and P).
func gpuExperiments() []Experiment {
	var all []Experiment
	// Each fault begins after 100 batches on a working GPU.
	for _, f := range []struct {
		kind     string
		backends int
		lostMax  float64 // requests at light load
		short    bool
	}{{"fail@100", 2, 40, true}, {"fail@100", 3, 40, false}, {"lost@100", 2, 16, false}, {"hang@100", 2, 40, false}, {"sticky@100", 2, 16, false}} {
		all = append(all, Experiment{Name: fmt.Sprintf("gpu-%s-1-of-%d", f.kind[:len(f.kind)-4], f.backends), Packets: false, Short: f.short,
			Promise: "requests of a GPU that fails go to others", Run: func(w *World) Observation { return failingGPU(w, f.kind, f.backends, f.lostMax) }})
	}

	for _, n := range []int{2, 3} {
		all = append(all, Experiment{Name: fmt.Sprintf("gpu-fail-full-load-1-of-%d", n), Promise: "a GPU whose batches fail at once does not reduce the goodput of the others", Run: func(w *World) Observation { return failingAtFullLoad(w, n) }})
	}
	return append(all,
		Experiment{Name: "gpu-slow-1-of-2", Promise: "a slow GPU leaves the rotation", Run: slowGPU},
		Experiment{Name: "data-plane-unreachable", Packets: true, Promise: "a backend that cannot reach frontends costs them nothing", Run: unreachableData})
}

// failingGPU makes one GPU fail under a load that the others can sustain.
func failingGPU(w *World, fault string, backends int, lostMax float64) Observation {
	m := light(64)
	models := w.Repository("models", m)
	w.StartSchedulers(1)
	for i := range backends {
		w.addHost(backendHost + i)
		if i == 0 {
			w.StartBackend(0, models, "-fault", "0:"+fault)
		} else {
			w.StartBackend(i, models)
		}
	}
	rate := 200 * float64(backends-1) // half of the others' capacity

	c := w.StartCaller(0, Load{m, rate, 100 * time.Millisecond})
	from := now()
	time.Sleep(8 * time.Second)
	fallSilent(300*time.Millisecond, c)

	share := c.between(from, now())
	var o Observation
	o.Measures = []Measure{atMost("lost", o.countLost(c, from), lostMax), atLeast("good %", share.Percent(), 99)}
	return o
}

// failingAtFullLoad compares the goodput of n−1 working GPUs alone with their goodput beside a failing one, at a load
// above their capacity. The two alternate, since the machine has other work.
func failingAtFullLoad(w *World, n int) Observation {
	m := light(64)
	models := w.Repository("models", m)
	scheduler := w.StartSchedulers(1)[0]
	w.addHost(backendHost)
	for i := 1; i < n; i++ {
		w.addHost(backendHost + i)
		w.StartBackend(i, models)
	}

	// The load is a fifth above the working GPUs' capacity, so every lost GPU millisecond shows in goodput.
	c := w.StartCaller(0, Load{m, 520 * float64(n-1), 100 * time.Millisecond})

	var alone, beside float64
	measure := func() float64 {
		time.Sleep(500 * time.Millisecond)
		from := now()
		time.Sleep(3 * time.Second)
		to := now()
		// The last requests have 100 ms; the rest lets their answers arrive before they are counted.
		time.Sleep(150 * time.Millisecond)
		return float64(c.between(from, to).Good)
	}
	for round := range 2 {
		alone += measure()
		sick := w.StartBackend(0, models, "-fault", "0:fail@100")
		// The scheduler logs it once per failing GPU, so each round adds a line.
		for end := time.Now().Add(patience); strings.Count(scheduler.log.String(), "GPU is held back") <= round && time.Now().Before(end); {
			time.Sleep(20 * time.Millisecond)
		}
		beside += measure()
		sick.kill()
		// Let the scheduler forget the dead backend before the next round measures without it.
		time.Sleep(time.Second)
	}

	c.Rate(0)
	return Observation{Measures: []Measure{
		atLeast("of the sound ones' capacity %", 100*beside/alone, 98),
		atLeast("good/s beside", beside/6, 0)}}
}

func slowGPU(w *World) Observation {
	m := light(64)
	models := w.Repository("models", m)
	w.StartSchedulers(1)
	w.addHost(backendHost)
	w.addHost(backendHost + 1)
	w.StartBackend(0, models, "-fault", "0:slow@20")
	w.StartBackend(1, models)

	c := w.StartCaller(0, Load{m, 250, 100 * time.Millisecond})
	time.Sleep(4 * time.Second)

	// The first 4 s belong to the detection of the slow GPU.
	from := now()
	time.Sleep(6 * time.Second)
	fallSilent(200*time.Millisecond, c)
	return Observation{Measures: []Measure{atLeast("good % after 4 s", c.between(from, now()).Percent(), 99)}}
}

// unreachableData disconnects one backend from the frontend but not from the scheduler.
func unreachableData(w *World) Observation {
	m := light(64)
	w.StartSchedulers(1)
	w.addHost(callerHost)
	w.addHost(backendHost)

	// Cut before the backend starts, so that its data links never work, whatever the first handshakes do.
	w.harm(callerHost, backendHost, lan.Harm{Cut: true})

	models := w.Repository("models", m)
	w.StartBackend(0, models)
	w.addHost(backendHost + 1)
	w.StartBackend(1, models)

	c := w.startCaller(0, Load{m, 250, 100 * time.Millisecond})
	c.awaitReady()

	// A batch that cannot fetch costs its requests; the scheduler has 2 s to stop using the backend.
	from := now()
	time.Sleep(2 * time.Second)
	settled := now()
	time.Sleep(6 * time.Second)
	fallSilent(200*time.Millisecond, c)
	return Observation{Measures: []Measure{
		atLeast("good % after 2 s", c.between(settled, now()).Percent(), 99),
		atLeast("good % at first", c.between(from, settled).Percent(), 80)}}
}
