package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"downbeat.dev/bench/median"
)

// caller sends one request and waits for its answer.
type caller func(ctx context.Context) error

// side is one server under test, with its callers.
type side struct {
	name    string
	callers []caller
	rates   []float64
	delays  []time.Duration
	cpu     time.Duration
	n       int
	errors  int
}

// connect creates the callers of one side, and a function that closes them.
type connect func(addr string) ([]caller, func(), error)

// rival is one side before it is called: its name, the callers' constructor and the server's address.
type rival struct {
	name string
	way  connect
	addr string
}

// contest is the rivals that alternate over one protocol. Tables give the first rival's rate over each other's.
type contest struct {
	protocol string
	rivals   []rival
}

// compareAll runs all contests, one after the other.
func (c Config) compareAll(ctx context.Context, contests []contest) (rows []Row, err error) {
	for _, one := range contests {
		found, err := c.compareOne(ctx, one)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", one.protocol, err)
		}
		rows = append(rows, found...)
	}
	return rows, nil
}

// compareOne runs one contest and returns a row for each side.
func (c Config) compareOne(ctx context.Context, one contest) (rows []Row, err error) {
	sides := make([]*side, len(one.rivals))
	for i, r := range one.rivals {
		callers, done, err := r.way(r.addr)
		if err != nil {
			return nil, err
		}
		defer done()
		sides[i] = &side{name: r.name, callers: callers}
	}

	// All sides alternate in short rounds, so that a slow phase of the host affects each; the first round warms up.
	for round := range c.Rounds + 1 {
		for _, s := range sides {
			if err := s.runRound(ctx, c.Each, round > 0); err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}

	for _, s := range sides {
		rows = append(rows, Row{one.protocol, s.name, median.Of(s.rates), median.Percentile(s.delays, 99), s.cpuEach(), s.errors})
	}
	return rows, nil
}

// cpuEach returns the processor time per request.
func (s *side) cpuEach() time.Duration { return s.cpu / time.Duration(s.n) }

// cpuTime returns the process's processor time since its start.
func cpuTime() time.Duration {
	var u unix.Rusage

	// Sum user and system time: the kernel's part of a request is the cost of sockets.
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// runRound runs every caller for a while.
func (s *side) runRound(ctx context.Context, d time.Duration, count bool) error {
	var mu sync.Mutex
	var wait sync.WaitGroup
	n, failed := 0, 0
	var last error

	// Measure processor time over the whole round, callers included: one process cannot separate them.
	began, used := time.Now(), cpuTime()
	for _, call := range s.callers {
		wait.Go(func() {
			delays, bad, err := call.repeatUntil(ctx, began.Add(d))

			mu.Lock()
			defer mu.Unlock()
			n += len(delays)
			failed += bad
			if err != nil {
				last = err
			}
			if count {
				s.delays = append(s.delays, delays...)
			}
		})
	}
	wait.Wait()

	// A server that answers nothing must not look infinitely fast.
	if n == 0 {
		return errors.Join(errors.New("no request was answered"), last, ctx.Err())
	}

	if count {
		s.rates = append(s.rates, float64(n)/time.Since(began).Seconds())
		s.errors += failed
		s.n += n
		s.cpu += cpuTime() - used
	}
	return ctx.Err()
}

// repeatUntil sends requests until a time, each as soon as the previous one is answered, so that the rate is what both
// ends together can sustain. It returns the delays of the answered requests, the number of failed ones and the last
// error.
func (call caller) repeatUntil(ctx context.Context, end time.Time) (delays []time.Duration, failed int, last error) {
	for time.Now().Before(end) && ctx.Err() == nil {
		began := time.Now()
		if err := call(ctx); err != nil {
			failed++
			last = err
			continue
		}
		delays = append(delays, time.Since(began))
	}
	return delays, failed, last
}
