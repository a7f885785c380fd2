package engine

import (
	"slices"

	"downbeat.dev/core/sched"
)

// A request that a backend could not read, or whose batch failed there, goes to another backend if one serves its
// model, since the same backend would most likely fail again. The frontend's session remembers for a while which
// backends could not read from it, so that the second try avoids all of them.

// unreachable records the backends that recently could not read from a frontend. The partition's lock guards it.
type unreachable struct {
	groups sched.Groups
	until  sched.Time
}

// noteUnread records that a backend could not read from a frontend.
func (p *partition) noteUnread(now sched.Time, front uint32, backend sched.Groups) {
	s := p.idWindow(front)
	if s == nil {
		return
	}
	if now >= s.unread.until {
		s.unread.groups = 0
	}
	s.unread.groups |= backend
	s.unread.until = now.Add(sched.UnreadFor)
}

// groupsToAvoid returns the backends that must not get a flight's request when it is queued again.
func (p *partition) groupsToAvoid(e *Engine, now sched.Time, f *flight, r *sched.Request) sched.Groups {
	var unread sched.Groups
	if s := p.idWindow(r.Origin); s != nil && now < s.unread.until {
		unread = s.unread.groups
	}
	return sched.GroupsToAvoid(r.Flags, f.gpu.b.group, unread, func(without sched.Groups) bool { return p.servedBeside(e, f, without) })
}

// servedBeside reports whether a backend outside these groups serves a flight's model.
func (p *partition) servedBeside(e *Engine, f *flight, without sched.Groups) bool {
	serves := func(sub uint32) bool {
		in := e.ranker(sub).groups.Load()
		return in != nil && slices.ContainsFunc(*in, func(g sched.Groups) bool { return g&without == 0 })
	}
	return serves(f.gpu.sub) || slices.ContainsFunc(p.severalOf(f.model), serves)
}

// groups returns the groups of the backends with GPUs in a sub-cluster.
func (c *cluster) groups() *[]sched.Groups {
	var all []sched.Groups
	for _, u := range c.gpus {
		if !slices.Contains(all, u.b.group) {
			all = append(all, u.b.group)
		}
	}
	return &all
}

// usedGroups returns the group of every backend.
func (g *registry) usedGroups() (used []sched.Groups) {
	for _, b := range g.backends {
		used = append(used, b.group)
	}
	return used
}
