package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	graph "downbeat.dev/core/app"
	"downbeat.dev/frontend"
)

// ErrInvalid marks invalid frames and sessions.
var ErrInvalid = errors.New("invalid frame")

// ErrHook marks frames whose hook failed.
var ErrHook = errors.New("hook failed")

// The types of package core/app that describe an application and the admission of its sessions. downbeat.Start builds
// them from the model repository; programs need not look into them.
type (
	Graph    = graph.Graph    // an application whose stages match
	Profiles = graph.Profiles // ℓ(b) of each step
	Capacity = graph.Capacity // the capacity for promises
	Trial    = graph.Trial    // runs promises in virtual time
)

// Client is an App's client for its requests; *frontend.Client is one.
type Client interface {
	Buffer(n int) (*frontend.Buffer, error)
	DoWhole(ctx context.Context, calls []frontend.Call) error
	Model(name, version string) *frontend.Model
}

// Options are the options of an App.
type Options struct {
	// Hooks are Go functions that stages may call, beside those of this package.
	Hooks map[string]NewHook
	// Offsets are the times reserved behind each step, for a frame with the application's latency; they scale with
	// other latencies. nil: derived from the models' SLOs.
	Offsets []time.Duration
	// Profiles are ℓ(b) by step; nil: unknown. With profiles, a step that missed its deadline knows how much time the
	// later steps need.
	Profiles Profiles
	// AtFloor returns the Profiles of the variants at or above a session's floor; nil: Profiles, whatever the floor.
	AtFloor func(floor float64) Profiles
	// Admission decides which sessions may open. It needs Profiles. nil: all may.
	Admission *Admission
	// HoldBytes is the size from which an output that only models need stays at the backend that computed it, from
	// where the next backend reads it. 0: 256 KiB, above which it is faster; negative: every output passes through
	// the frontend.
	HoldBytes int
	// StreamsMax is the largest number of open sessions; 0: 1,024.
	StreamsMax int
}

// App is an application ready to run.
type App struct {
	graph   *graph.Graph
	client  Client
	steps   []step
	offsets []time.Duration
	rest    []time.Duration // by step: the shortest time that the later steps need
	streams streams
	frames  sync.Pool // of *run
	stats   stats
	latest  traces

	profiles  graph.Profiles
	atFloor   func(floor float64) Profiles
	admission *Admission // nil: all sessions may open
}

// step is the state of a step beside the graph.
type step struct {
	*graph.Step
	hook    Hook
	buffers buffers
	feeds   []int // steps that depend on this one, each once
	counts  stepCounts
	hold    uint32       // bit mask of the outputs that backends are asked to hold
	plain   atomic.Int64 // time in ns since the Unix epoch until which nothing is held: a backend could not do it
}

// New creates an App. Its hooks must exist and accept their settings. Models may come and go later.
func New(client Client, g *Graph, o Options) (*App, error) {
	a := &App{graph: g, client: client, steps: make([]step, len(g.Steps)), offsets: o.Offsets}
	a.streams.most = cmp.Or(o.StreamsMax, streamsMax)

	// Without profiles, divide a frame's time by the models' SLOs.
	if a.offsets == nil {
		a.offsets = g.Offsets(g.Latency)
	}
	if len(a.offsets) != len(g.Steps) {
		return nil, fmt.Errorf("application %q: %d offsets: want one for each of %d steps", g.Name, len(a.offsets), len(g.Steps))
	}

	a.profiles, a.atFloor, a.admission = o.Profiles, o.AtFloor, o.Admission
	if a.profiles == nil && a.admission != nil {
		return nil, fmt.Errorf("application %q: admission without profiles: want both or none", g.Name)
	}

	a.rest = g.Rest(a.profiles, 0)

	for j := range g.Steps {
		a.steps[j].hold = holdOf(g, j, cmp.Or(o.HoldBytes, holdBytes))
		s := &a.steps[j]
		s.Step = &g.Steps[j]
		for _, before := range s.After {
			// The graph has the predecessors of each step; store the successors, too.
			a.steps[before].feeds = append(a.steps[before].feeds, j)
		}
		if s.Model != "" {
			continue
		}

		make, err := findHook(o.Hooks, s.Hook)
		if err == nil {
			s.hook, err = make(describeStep(s.Step))
		}
		if err != nil {
			return nil, fmt.Errorf("application %q: stage %q: hook %q: %w", g.Name, s.Name, s.Hook, err)
		}
	}
	return a, nil
}

// Graph returns the application's graph.
func (a *App) Graph() *Graph { return a.graph }

// Close closes every session and frees the buffers. Frames under way end normally.
func (a *App) Close() {
	// Close sessions first, so that none begins a frame whose buffers are being freed.
	a.streams.closeAll()
	for j := range a.steps {
		a.steps[j].buffers.close()
	}
}

// buffers keeps a step's registered memory between frames.
type buffers struct {
	mu     sync.Mutex
	free   []*frontend.Buffer
	closed bool
}

// buffersKept bounds the buffers that a step keeps.
const buffersKept = 64

// takeBuffer returns a buffer of n bytes.
func (b *buffers) takeBuffer(client Client, n int) (*frontend.Buffer, error) {
	b.mu.Lock()

	// Reuse buffers: registering memory takes far longer than a request may.
	if k := len(b.free) - 1; k >= 0 {
		kept := b.free[k]
		b.free = b.free[:k]
		b.mu.Unlock()
		if kept.Resize(n) == nil {
			return kept, nil
		}
		kept.Free() // the inputs of this step vary in size
		return client.Buffer(n)
	}
	b.mu.Unlock()
	return client.Buffer(n)
}

func (b *buffers) giveBuffer(buffer *frontend.Buffer) {
	b.mu.Lock()

	// After close nobody would free the buffer.
	keep := !b.closed && len(b.free) < buffersKept
	if keep {
		b.free = append(b.free, buffer)
	}
	b.mu.Unlock()
	if !keep {
		buffer.Free()
	}
}

func (b *buffers) close() {
	b.mu.Lock()
	all := b.free
	b.free, b.closed = nil, true
	b.mu.Unlock()

	for _, buffer := range all {
		buffer.Free()
	}
}

// stats are an App's counters, written concurrently.
type stats struct{ begun, answered, failed, hurt, evicted atomic.Uint64 }

type stepCounts struct{ answered, failed, canceled, skipped, requests, held, regained atomic.Uint64 }

// profilesAt returns the profiles with which admission plans a session.
func (a *App) profilesAt(floor float64) Profiles {
	if a.atFloor == nil || floor == 0 {
		return a.profiles
	}
	return a.atFloor(floor)
}

// Stats are an App's counts since New.
type Stats struct {
	Frames, Answered, Failed uint64 // ended frames are Answered + Failed
	Hurt, Evicted            uint64 // times that a session's promise was broken; evicted sessions
	Steps                    []StepStats
}

// StepStats counts how a step ended in frames that ended.
type StepStats struct {
	Name                                string
	Answered, Failed, Canceled, Skipped uint64 // frames
	Requests                            uint64
	Held                                uint64 // requests with outputs that stayed at their backend
	Regained                            uint64 // inputs that could not be read from a backend and were obtained another way
}

// Stats returns the counts. It is not for the hot path.
func (a *App) Stats() Stats {
	s := Stats{Frames: a.stats.begun.Load(), Answered: a.stats.answered.Load(), Failed: a.stats.failed.Load(),
		Hurt: a.stats.hurt.Load(), Evicted: a.stats.evicted.Load()}
	for j := range a.steps {
		c := &a.steps[j].counts
		s.Steps = append(s.Steps, StepStats{Name: a.steps[j].Name, Answered: c.answered.Load(), Failed: c.failed.Load(),
			Canceled: c.canceled.Load(), Skipped: c.skipped.Load(), Requests: c.requests.Load(),
			Held: c.held.Load(), Regained: c.regained.Load()})
	}
	return s
}
