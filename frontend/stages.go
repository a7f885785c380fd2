package frontend

import "time"

// Stages are the parts of a request's way, one after another. They add up to Result.Elapsed. All are 0 where nothing is
// known: the request got no output, or its backend is of before protocol 7.
type Stages struct {
	// Queue is from the call until the backend had the order for the request's batch: the way to the scheduler, its queue, and
	// the way to the backend. It covers whatever was tried in vain before.
	Queue   time.Duration
	Fetch   time.Duration // until the inputs of the whole batch were there
	Wait    time.Duration // until its GPU began it
	Execute time.Duration // until the GPU had ended it
	Reply   time.Duration // until the output arrived
}

// stagesOf splits the time that an answered call took. Backends tell durations, since their clocks are their own: what is
// left of the whole went to the ways between the hosts and to the queue. An output's way is taken for half of what an
// echo takes there and back.
func (c *Client) stagesOf(p *call, elapsed time.Duration) Stages {
	if !p.staged {
		return Stages{}
	}

	s := Stages{Fetch: time.Duration(p.stages.Fetch), Wait: time.Duration(p.stages.Wait), Execute: time.Duration(p.exec)}
	left := elapsed
	for _, part := range []*time.Duration{&s.Execute, &s.Fetch, &s.Wait} {
		*part = min(max(*part, 0), left) // two clocks may differ
		left -= *part
	}

	s.Reply = min(time.Duration(p.stages.Reply)+time.Duration(c.echo.Load()/2), left)
	s.Queue = left - s.Reply
	return s
}
