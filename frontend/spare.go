package frontend

import (
	"errors"
	"time"
)

// sparedMost is for how long a request is kept whose scheduler had no backend for it, where there are several schedulers. A leader
// that is cut off from its backends says so as soon as they are silent to it, which is when they begin to look for another leader.
const sparedMost = time.Second

var errNoSuccessor = errors.New("the leading scheduler has no backend for the model, and no other one took over")

// spareCall keeps a call that its scheduler had no backend for, until another scheduler leads or the model is ready again. The
// shard is locked; spareCall unlocks it.
func (c *Client) spareCall(p *call, now int64) {
	// Of no session, it is taken by the walk of whichever opens next; the sweep ends it if none does in time.
	s := p.shard
	s.unlinkCall(p)
	p.spared, p.epoch, p.expire = true, 0, min(p.expire, now+int64(sparedMost))
	s.linkCall(p)
	s.mu.Unlock()
	c.left.Add(1)
}

// unspareCall gives a call that is about to be submitted again all of its budget. The shard is locked.
func (c *Client) unspareCall(p *call) {
	p.shard.unlinkCall(p)
	p.spared, p.expire = false, p.deadline+int64(c.o.Grace)
	p.shard.linkCall(p)
}
