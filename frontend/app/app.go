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

// ErrInvalid marks frames and sessions that cannot be right.
var ErrInvalid = errors.New("invalid frame")

// ErrHook marks frames whose hook failed.
var ErrHook = errors.New("hook failed")

// What an application is, as package core/app describes it, and what its sessions are admitted by. A deployment makes them
// of its model repository (downbeat.Start); a program has no need to look into them.
type (
	Graph    = graph.Graph    // an application whose stages fit each other
	Profiles = graph.Profiles // ℓ(b) of each step
	Capacity = graph.Capacity // what promises are kept with
	Trial    = graph.Trial    // runs promises in virtual time
)

// Client is what an App asks; *frontend.Client is one.
type Client interface {
	Buffer(n int) (*frontend.Buffer, error)
	DoWhole(ctx context.Context, calls []frontend.Call) error
	Model(name, version string) *frontend.Model
}

// Options say how an App runs its application.
type Options struct {
	// Hooks are the Go functions that stages may call, beside those of this package.
	Hooks map[string]NewHook
	// Offsets is what lies behind each step, for a frame of the application's latency; other latencies scale it. Nil:
	// by the SLOs of the models.
	Offsets []time.Duration
	// Profiles are ℓ(b) by step; nil: not known. With them a step that missed its deadline knows what the rest needs.
	Profiles Profiles
	// AtFloor are the Profiles of what answers at or above a session's floor; nil: Profiles, whatever the floor.
	AtFloor func(floor float64) Profiles
	// Admission decides which sessions may open; it needs Profiles. Nil: all may.
	Admission *Admission
	// HoldBytes is from which size on an output that only models need stays with the backend that computed it, and is read by the
	// next one from there; 0: 256 KiB, from where on it is faster; negative: every output comes through the frontend.
	HoldBytes int
	// StreamsMax bounds the sessions that are open at a time; 0: 1,024.
	StreamsMax int
}

// App is an application ready to run.
type App struct {
	graph   *graph.Graph
	client  Client
	steps   []step
	offsets []time.Duration
	rest    []time.Duration // by step: the least that lies behind it
	streams streams
	frames  sync.Pool // of *run
	stats   stats
	latest  traces

	profiles  graph.Profiles
	atFloor   func(floor float64) Profiles
	admission *Admission // nil: all sessions may open
}

// step is what running a step needs beside the graph.
type step struct {
	*graph.Step
	hook    Hook
	buffers buffers
	feeds   []int // steps that need this one, each once
	counts  stepCounts
	hold    uint32       // the outputs that backends are asked to hold, a bit each
	plain   atomic.Int64 // until when, in ns of the Unix epoch, nothing is held: backends did not know how
}

// New makes an application ready: its hooks must be known, and accept their settings. Models may come and go later.
func New(client Client, g *Graph, o Options) (*App, error) {
	a := &App{graph: g, client: client, steps: make([]step, len(g.Steps)), offsets: o.Offsets}
	a.streams.most = cmp.Or(o.StreamsMax, streamsMax)

	// Without a split by cost, the models' SLOs say how a frame's time is divided.
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
			// Kept in both directions: a step that ends looks up whom it lets begin.
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

// Graph returns what the App runs.
func (a *App) Graph() *Graph { return a.graph }

// Close closes every session and gives buffers back. Frames under way end as they would have.
func (a *App) Close() {
	// Sessions go first: none may begin a frame whose buffers are going.
	a.streams.closeAll()
	for j := range a.steps {
		a.steps[j].buffers.close()
	}
}

// buffers keeps registered memory of a step from frame to frame.
type buffers struct {
	mu     sync.Mutex
	free   []*frontend.Buffer
	closed bool
}

// buffersKept bounds what a step keeps.
const buffersKept = 64

// takeBuffer returns a buffer of n bytes.
func (b *buffers) takeBuffer(client Client, n int) (*frontend.Buffer, error) {
	b.mu.Lock()

	// Registering memory takes far longer than a request may: buffers are used again.
	if k := len(b.free) - 1; k >= 0 {
		kept := b.free[k]
		b.free = b.free[:k]
		b.mu.Unlock()
		if kept.Resize(n) == nil {
			return kept, nil
		}
		kept.Free() // inputs of this step vary in size
		return client.Buffer(n)
	}
	b.mu.Unlock()
	return client.Buffer(n)
}

func (b *buffers) giveBuffer(buffer *frontend.Buffer) {
	b.mu.Lock()

	// After close nobody would free it any more.
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

// stats is what an App counts; each is written by any goroutine.
type stats struct{ begun, answered, failed, hurt, evicted atomic.Uint64 }

type stepCounts struct{ answered, failed, canceled, skipped, requests, held, regained atomic.Uint64 }

// profilesAt are those that admission counts with for a session.
func (a *App) profilesAt(floor float64) Profiles {
	if a.atFloor == nil || floor == 0 {
		return a.profiles
	}
	return a.atFloor(floor)
}

// Stats is what an App counts since New.
type Stats struct {
	Frames, Answered, Failed uint64 // Frames that ended are Answered + Failed
	Hurt, Evicted            uint64 // times that a session's promise was broken, and sessions that were evicted
	Steps                    []StepStats
}

// StepStats counts how a step ended in frames that ended.
type StepStats struct {
	Name                                string
	Answered, Failed, Canceled, Skipped uint64 // frames
	Requests                            uint64
	Held                                uint64 // requests some of whose outputs stayed with their backend
	Regained                            uint64 // inputs that were to be read from a backend and came another way
}

// Stats returns counts. It is not for the hot path.
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
