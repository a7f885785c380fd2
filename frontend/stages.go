package frontend

import "time"

// Stages are the successive parts of a request's time; they add up to Result.Elapsed. All are 0 if they are unknown:
// the request got no output, or its backend's protocol is older than 7.
type Stages struct {
	// Queue is the time from the call until the backend had the order for the request's batch: the way to the
	// scheduler, its queue, and the way to the backend. It includes earlier attempts.
	Queue   time.Duration
	Fetch   time.Duration // until the inputs of the whole batch had arrived
	Wait    time.Duration // until the GPU started it
	Execute time.Duration // until the GPU finished it
	Reply   time.Duration // until the output arrived
}

// stagesOf splits the time of an answered call. Backends report durations, because their clocks differ; the remainder
// is the time between the hosts and in the queue. An output's way is taken as half an echo's round trip.
func (c *Client) stagesOf(p *call, elapsed time.Duration) Stages {
	if !p.staged {
		return Stages{}
	}

	s := Stages{Fetch: time.Duration(p.stages.Fetch), Wait: time.Duration(p.stages.Wait), Execute: time.Duration(p.exec)}
	left := elapsed
	for _, part := range []*time.Duration{&s.Execute, &s.Fetch, &s.Wait} {
		*part = min(max(*part, 0), left) // clocks run at slightly different rates
		left -= *part
	}

	s.Reply = min(time.Duration(p.stages.Reply)+time.Duration(c.echo.Load()/2), left)
	s.Queue = left - s.Reply
	return s
}
