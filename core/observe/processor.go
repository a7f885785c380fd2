package observe

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var descProcessorWait = prometheus.NewDesc("downbeat_processor_wait_seconds_total",
	"Time that the process's threads were ready to run but had no processor; on Linux only.", nil, nil)

// processorWaits collects how long threads of this process were runnable without a processor, as Linux counts it per
// thread (schedstat in proc(5)). Reading it needs no privileges. Other systems report nothing.
type processorWaits struct {
	tasks string // directory of the process's threads

	mu    sync.Mutex
	last  map[string]time.Duration // by thread, at the previous reading
	total time.Duration            // also of ended threads, up to the last reading
}

func newProcessorWaits() *processorWaits { return &processorWaits{tasks: "/proc/self/task"} }

// Describe implements prometheus.Collector.
func (w *processorWaits) Describe(to chan<- *prometheus.Desc) { to <- descProcessorWait }

// Collect implements prometheus.Collector.
func (w *processorWaits) Collect(to chan<- prometheus.Metric) {
	if total, ok := w.lookAgain(); ok {
		to <- prometheus.MustNewConstMetric(descProcessorWait, prometheus.CounterValue, total.Seconds())
	}
}

// lookAgain adds the threads' waits since the previous reading; false if the kernel does not report them.
func (w *processorWaits) lookAgain() (time.Duration, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()

	threads, err := os.ReadDir(w.tasks)
	if err != nil {
		return 0, false
	}
	now := make(map[string]time.Duration, len(threads))
	for _, t := range threads {
		text, err := os.ReadFile(filepath.Join(w.tasks, t.Name(), "schedstat"))
		if err != nil {
			continue // the thread has ended meanwhile
		}
		if waited, ok := parseSchedstat(text); ok {
			now[t.Name()] = waited
		}
	}
	if len(now) == 0 {
		return 0, false
	}

	// A thread that has ended since keeps the wait of its last reading.
	for thread, waited := range now {
		before := w.last[thread]
		if waited < before {
			before = 0 // a new thread reuses the number of an ended one
		}
		w.total += waited - before
	}
	w.last = now
	return w.total, true
}

// parseSchedstat returns a thread's wait: the second of three numbers, in ns.
func parseSchedstat(text []byte) (time.Duration, bool) {
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0, false
	}
	ns, err := strconv.ParseInt(string(fields[1]), 10, 64)
	return time.Duration(ns), err == nil
}
