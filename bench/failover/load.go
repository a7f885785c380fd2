package failover

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"downbeat.dev/frontend"
)

// request is one sent request; times count from the load's beginning.
type request struct {
	at      time.Duration // intended time of sending
	ended   time.Duration
	good    bool   // an output came by the deadline, counted from at
	outlast bool   // it has the longer budget
	why     string // reason why it is not good
	again   int    // times that the client submitted it again
}

// load is an open loop of Poisson arrivals.
type load struct {
	began time.Time
	stop  chan struct{}
	wait  sync.WaitGroup

	mu  sync.Mutex
	all []request
}

func startLoad(client *frontend.Client, c Config) *load {
	l := &load{began: time.Now(), stop: make(chan struct{})}
	l.wait.Go(func() {
		random := rand.New(rand.NewPCG(c.Seed, 1))
		rate := c.Share * c.clusterCapacity()
		for at := time.Duration(0); ; at += time.Duration(random.ExpFloat64() / rate * 1e9) {
			select {
			case <-l.stop:
				return
			case <-time.After(at - time.Since(l.began)):
			}

			outlast := random.Float64() < outlastShare
			l.wait.Go(func() { l.askOnce(client, c, at, outlast) })
		}
	})
	return l
}

func (l *load) askOnce(client *frontend.Client, c Config, at time.Duration, outlast bool) {
	// The deadline counts from the intended time of sending, so a late start of the goroutine is not forgiven.
	budget := c.SLO
	if outlast {
		budget = c.Outlast
	}

	deadline := l.began.Add(at + budget)
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()

	result, err := client.InferCopy(ctx, modelName, make([]byte, 1024))
	end := time.Now()
	result.Release()

	l.mu.Lock()
	defer l.mu.Unlock()

	why := reasonOf(err, end.After(deadline))
	l.all = append(l.all, request{at: at, ended: end.Sub(l.began), good: why == "", outlast: outlast, why: why, again: result.Resubmits})
}

// reasonOf returns why a request is not good; empty: it is good.
func reasonOf(err error, late bool) string {
	var outcome *frontend.OutcomeError

	switch {
	case errors.As(err, &outcome) && outcome.Local:
		return outcome.Reason.String() + "/frontend"
	case errors.As(err, &outcome):
		return outcome.Reason.String()
	case err != nil:
		return err.Error()
	case late:
		return "late"
	}
	return ""
}

// endLoad stops the load and returns the sent requests.
func (l *load) endLoad() []request {
	close(l.stop)
	l.wait.Wait()
	return l.all
}
