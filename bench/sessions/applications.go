package sessions

import (
	"fmt"
	"strings"
	"time"
)

// Quality is one instance of an application (R1): the same graph with lighter models.
type Quality struct {
	Name     string
	Accuracy float64 // stated: none is published
	Scale    float64 // of the GPU times
}

// Module is one step of an application.
type Module struct {
	Name      string
	Exec      time.Duration // ℓ(1) on a worker's GPU at the best quality
	FanOut    int           // requests per frame
	CPU       time.Duration // before it, on the worker's processors
	After     []int32
	Serialize time.Duration // time to pass its results to another worker
	MemoryMB  int
	// Use is the part of a GPU that one request can use. Exec is its time on a GPU that others fill up: alone it
	// takes Exec/Use.
	Use float64
}

// Application is one of Rim's mDAGs, with stated profiles.
type Application struct {
	Name      string
	Latency   time.Duration // stated
	Qualities []Quality     // best first
	Modules   []Module
	Stateful  bool // a frame needs the state of earlier ones: a session's frames stay together
}

// launchShare is β/(α+β) of every module, the cost of a batch before its first request: ℓ(b) =
// ℓ(1)·((1−launchShare)·b + launchShare). Symphony's table 1 has β/α of 2.1 to 9.7 on a 1080 Ti; here it is 2.
const launchShare = 2.0 / 3

// batchMax is the largest batch of a module.
const batchMax = 16

// Applications are Rim's seven (T1). Frame rates that one worker sustains: traffic's 16 and 24 fps are published,
// tracker's 15.0 and face's 11.2 follow from the maximal workloads (EVIDENCE §3), and the other four are stated, like
// all latencies, accuracies, fan-outs and the division of the GPU time. Alone on a GPU, Jasper (hear) uses 63 % and
// ACAM (act) 72 % of it; caption uses as much as published for its highest rate; the rest is stated. actdet's
// serialization follows from its published 0.85 s → 7.60 s. Stateful are the three that the paper names.
func Applications() []Application {
	ms := func(x float64) time.Duration { return time.Duration(x * float64(time.Millisecond)) }

	pass := ms(30)
	two := []Quality{{"high", 0.90, 1}, {"low", 0.80, 2.0 / 3}}

	// A module has its time for one request, requests per frame, processor time, predecessors, hand-over time and
	// memory in MB.
	return []Application{
		{"tracker", ms(500), two, []Module{
			{"detect", ms(34.67), 1, ms(5), nil, pass, 900, 0.6}, {"embed", ms(8), 4, ms(3), []int32{0}, pass, 300, 0.55}}, false},
		{"face", ms(500), two[:1], []Module{
			{"detect", ms(41.29), 1, ms(5), nil, pass, 700, 0.65}, {"recognize", ms(12), 4, ms(3), []int32{0}, pass, 500, 0.55}}, false},
		{"traffic", ms(500), two, []Module{
			{"detect", ms(34.5), 1, ms(5), nil, pass, 900, 0.6}, {"vehicle", ms(7), 2, ms(2), []int32{0}, pass, 300, 0.5}, {"activity", ms(7), 2, ms(2), []int32{0}, pass, 300, 0.5}}, false},
		{"actdet", ms(1500), two, []Module{
			{"detect", ms(33.3), 1, ms(5), nil, pass, 900, 0.7}, {"track", ms(10), 1, ms(5), []int32{0}, ms(6750), 300, 0.6}, {"act", ms(40), 1, ms(5), []int32{1}, pass, 1400, 0.72}}, true},
		{"pose", ms(500), two, []Module{
			{"detect", ms(31.4), 1, ms(5), nil, pass, 900, 0.75}, {"pose", ms(10), 4, ms(3), []int32{0}, pass, 600, 0.6}}, true},
		{"caption", ms(1000), two, []Module{
			{"encode", ms(65), 1, ms(5), nil, pass, 800, 0.926}, {"decode", ms(60), 1, ms(2), []int32{0}, pass, 700, 0.926}}, true},
		{"en2ge", ms(2000), []Quality{{"high", 0.90, 1}, {"middle", 0.84, 6.0 / 9}, {"low", 0.76, 6.0 / 13}}, []Module{
			{"hear", ms(86.7), 1, ms(10), nil, pass, 1300, 0.63}, {"translate", ms(50), 1, ms(2), []int32{0}, pass, 700, 0.7}, {"speak", ms(30), 1, ms(2), []int32{1}, pass, 340, 0.8}}, false},
	}
}

// Work returns the GPU time of a frame without batching.
func (a *Application) Work(quality int) time.Duration {
	sum := time.Duration(0)
	for i := range a.Modules {
		sum += time.Duration(a.Modules[i].FanOut) * a.exec(i, quality)
	}
	return sum
}

// exec returns ℓ(1) of a module.
func (a *Application) exec(module, quality int) time.Duration {
	return time.Duration(float64(a.Modules[module].Exec) * a.Qualities[quality].Scale)
}

// Stream is one session that asks to be served.
type Stream struct {
	App         int // index in Applications
	FPS         float64
	From, Until time.Duration
}

// Workload is a list of sessions in the order in which they ask.
type Workload struct {
	Name    string
	Apps    []Application
	Streams []Stream
	Span    time.Duration
	Workers int
	// Times, if set, replaces Module.Exec, for workers of several kinds.
	Times func(app, module, quality, worker int) time.Duration
	// UntilFull: the sessions ask one by one, one per Every, until one is refused. All stay for a while and then
	// leave in reverse order.
	UntilFull bool
}

const (
	workers   = 14 // of Rim's testbed
	steadyFor = 30 * time.Second
	// F9's script.
	joinEvery = 10 * time.Second
	holdFor   = 30 * time.Second
	// textSessions is the number of sessions in text result 8.
	textSessions = 29
)

// FindWorkload returns W-1, W-2, W-3 (Rim's T2: tracker, face and traffic sessions at their rates), f9, or t8: the
// number of text result 8 of sessions of random applications, all at once.
func FindWorkload(name string, seed uint64) (Workload, error) {
	groups := map[string][][3]float64{ // application, sessions, fps
		"w-1": {{0, 8, 6}, {1, 10, 6}, {2, 10, 6}},
		"w-2": {{0, 6, 6}, {1, 8, 6}, {2, 12, 6}, {2, 2, 9}},
		"w-3": {{0, 10, 10}, {0, 3, 5}, {1, 4, 6}, {2, 8, 5}},
	}
	w := Workload{Name: strings.ToLower(name), Apps: Applications(), Span: steadyFor, Workers: workers}

	switch w.Name {
	case "f9": // more sessions than any policy can admit
		w.UntilFull = true
		w.Streams = drawStreams(len(w.Apps), 120, seed)
		return w, nil
	case "t8":
		w.Streams = drawStreams(len(w.Apps), textSessions, seed)
		for i := range w.Streams {
			w.Streams[i].Until = w.Span
		}
		return w, nil
	}

	all, ok := groups[w.Name]
	if !ok {
		return w, fmt.Errorf("workload %q: want W-1, W-2, W-3, f9, t8 or a file", name)
	}
	for _, g := range all {
		for range int(g[1]) {
			w.Streams = append(w.Streams, Stream{App: int(g[0]), FPS: g[2], Until: w.Span})
		}
	}
	return w, nil
}
