package frontend

import (
	"sync"
	"time"

	"downbeat.dev/core/limits"
	"downbeat.dev/core/wire"
)

// hooks knows how long the Prepare hooks of each model took lately.
type hooks struct {
	mu      sync.Mutex
	byModel map[string]*limits.Hooks
}

// expected returns how long a model's next hook will take; 0: unknown.
func (h *hooks) expected(model string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.byModel[model]; m != nil {
		return m.Expected()
	}
	return 0
}

// note records a model's hook.
func (h *hooks) note(model string, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.byModel[model]
	if m == nil {
		if h.byModel == nil {
			h.byModel = map[string]*limits.Hooks{}
		}
		m = &limits.Hooks{}
		h.byModel[model] = m
	}
	m.Add(took)
}

// expectInput sets when the input of a call will be there, if its hook begins after others that take some time. It
// returns when the next hook begins. The first hook of a model may take any time: its call is held until it has
// returned, because a backend would read in vain.
func (c *Client) expectInput(p *call, r *Request, after time.Duration) time.Duration {
	p.readyAt, p.held = 0, false
	if r.Prepare == nil {
		return after
	}

	took, most := r.PrepareTime, time.Duration(p.target-p.start)
	if took == 0 {
		took, most = c.hooks.expected(r.Model), most/limits.LearntShare
		p.held = took == 0
	} else {
		most = max(most, took) // the scheduler says that it is too long
	}

	p.readyAt = p.start + int64(min(after+took, most))
	return after + took
}

// expectInputs does so for a burst, whose hooks run one after another. Nil calls have not started.
func (c *Client) expectInputs(begun []*call, calls []Call) {
	after := time.Duration(0)
	for i, p := range begun {
		if p != nil {
			after = c.expectInput(p, &calls[i].Request, after)
		}
	}
}

// readyIn returns wire.Submit.ReadyIn of a call that is sent now. Its hook may have returned.
func (p *call) readyIn(now int64) int64 {
	if !p.filling {
		return 0
	}
	return max(0, p.readyAt-now)
}

// hasten tells the scheduler that an input is ready earlier than expected. The caller has locked the shard; hasten
// unlocks it.
func (c *Client) hasten(p *call) {
	now := c.now()
	epoch, early := p.epoch, p.epoch != 0 && p.readyAt-now >= int64(limits.HastenLeast)
	again := []wire.Submit{{ID: p.id(), Model: p.service, Priority: p.priority, Budget: p.target - now, Input: p.input}}
	p.hastened = p.hastened || early
	p.shard.mu.Unlock()
	if early {
		_ = c.submitWithin(again, epoch) // the next session is told anyway
	}
}
