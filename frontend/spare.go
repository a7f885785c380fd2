package frontend

import (
	"errors"
	"time"
)

// sparedMost is how long a request is kept whose scheduler had no backend for it, if there are several schedulers. A
// leader that is cut off from its backends reports this outcome as soon as they are silent, and at that moment the
// backends begin to look for another leader.
const sparedMost = time.Second

var errNoSuccessor = errors.New("the leading scheduler has no backend for the model, and no other one took over")

// spareCall keeps a call for which its scheduler had no backend, until another scheduler leads or the model is ready
// again. The shard is locked; spareCall unlocks it.
func (c *Client) spareCall(p *call, now int64) {
	// The call belongs to no session, so the next one that opens takes it; the sweep ends it if none does in time.
	s := p.shard
	s.unlinkCall(p)
	p.spared, p.epoch, p.expire = true, 0, min(p.expire, now+int64(sparedMost))
	s.linkCall(p)
	s.mu.Unlock()
	c.left.Add(1)
}

// unspareCall restores the full budget of a call that is about to be resubmitted. The shard is locked.
func (c *Client) unspareCall(p *call) {
	p.shard.unlinkCall(p)
	p.spared, p.expire = false, p.deadline+int64(c.o.Grace)
	p.shard.linkCall(p)
}
