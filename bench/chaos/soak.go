//go:build linux

package chaos

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// soakExperiments inject faults repeatedly; no resource may grow. The shorter ones are parts of the last.
func soakExperiments() []Experiment {
	return []Experiment{
		{Name: "soak-30s", Promise: "memory, descriptors and goroutines are flat", Run: func(w *World) Observation { return soak(w, 30*time.Second) }},
		{Name: "soak-30m", Long: true, Promise: "memory, descriptors and goroutines are flat for half an hour", Run: func(w *World) Observation { return soak(w, 30*time.Minute) }},
		{Name: "soak-1h", Long: true, Promise: "memory, descriptors and goroutines are flat for an hour", Run: func(w *World) Observation { return soak(w, time.Hour) }},
	}
}

// usage is one process's use of resources.
type usage struct{ memory, descriptors, goroutines float64 } // memory in MiB

var goroutinesLine = regexp.MustCompile(`(?m)^go_goroutines (\d+)`)

// sampleUsage reads a part's usage; the number of goroutines comes from its metrics.
func (w *World) sampleUsage(p *process, host int) usage {
	var u usage
	pid := p.cmd.Process.Pid
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid)); err == nil {
		fields := strings.Fields(string(text))
		pages, _ := strconv.ParseFloat(fields[1], 64) // the kernel's own numbers
		u.memory = pages * float64(os.Getpagesize()) / (1 << 20)
	}
	if all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)); err == nil {
		u.descriptors = float64(len(all))
	}

	if _, text, err := w.get(host, metricsPort, "/metrics"); err == nil {
		if found := goroutinesLine.FindStringSubmatch(text); found != nil {
			u.goroutines, _ = strconv.ParseFloat(found[1], 64) // digits
		}
	}
	return u
}

// soak injects a fault about every second. The scheduler and backend 0 are never killed, so they show what the
// others' ends leave behind: both are sampled after a warm-up and at the end, in the same state of the deployment.
func soak(w *World, span time.Duration) Observation {
	m := light(64)
	models := w.Repository("models", m)
	scheduler := w.StartSchedulers(1)[0]
	backends := w.StartBackends(3, models)
	steady := w.StartCaller(0, Load{m, 150, 300 * time.Millisecond})

	w.addHost(callerHost + 1)
	faults := 0

	until := func(end time.Time) {
		for ; time.Now().Before(end); faults++ {
			w.soakFault(backends, models, m, steady)
		}
	}

	// Let pools and caches fill before the first sample.
	start := time.Now()
	until(start.Add(max(span/4, 8*time.Second)))
	time.Sleep(1500 * time.Millisecond)
	before := [2]usage{w.sampleUsage(scheduler, schedulerHost), w.sampleUsage(backends[0], backendHost)}

	until(start.Add(span))
	time.Sleep(1500 * time.Millisecond)
	after := [2]usage{w.sampleUsage(scheduler, schedulerHost), w.sampleUsage(backends[0], backendHost)}

	fallSilent(500*time.Millisecond, steady)

	o := Observation{Measures: []Measure{atLeast("steady good %", steady.between(0, now()).Percent(), 98), atLeast("faults", float64(faults), span.Seconds()/4)}}
	for i, name := range []string{"scheduler", "backend"} {
		a, b := before[i], after[i]
		o.Measures = append(o.Measures, atMost(name+" MiB more", b.memory-a.memory, 16), atMost(name+" descriptors more", b.descriptors-a.descriptors, 2),
			atMost(name+" goroutines more", b.goroutines-a.goroutines, 4), atLeast(name+" goroutines", b.goroutines, 1))
	}
	return o
}

// soakFault injects one fault drawn from the seed.
func (w *World) soakFault(backends []*process, models string, m Model, steady *Caller) {
	// Backend 0 stays alive: its usage is compared.
	i := 1 + w.Random.IntN(len(backends)-1)

	switch w.Random.IntN(4) {
	case 0:
		backends[i].kill()
		time.Sleep(200 * time.Millisecond)
		backends[i] = w.StartBackend(i, models)
	case 1:
		check(backends[i].stop(patience))
		backends[i] = w.StartBackend(i, models)
	case 2:
		backends[i].signal(syscall.SIGSTOP)
		time.Sleep(300 * time.Millisecond)
		backends[i].signal(syscall.SIGCONT)
	case 3:
		c := w.startCaller(1, Load{m, 100, 100 * time.Millisecond})
		c.awaitReady()
		time.Sleep(300 * time.Millisecond)
		c.Kill()
	}
	time.Sleep(time.Duration(200+w.Random.IntN(400)) * time.Millisecond)
}
