package scaling

import "downbeat.dev/core/sched"

// applyPlan applies a plan to the hosts with as few changes as its counts allow. A device that changes its variant
// loads it after its running batch; requests bound to the device that cannot wait so long are bound to others.
func (p *hosted) applyPlan(now sched.Time, plan []placement) {
	kept := p.keepMatching(plan)
	changed := p.fillOthers(plan, kept)

	for i := range p.hosts {
		p.hosts[i].weight, p.hosts[i].credit = 0, 0
	}
	for _, x := range plan {
		for i := range p.hosts {
			if h := &p.hosts[i]; h.kind == x.kind && h.family == x.family && h.variant == x.variant {
				h.weight += max(x.rate, 1e-6) / float64(x.devices)
			}
		}
	}
	if p.uniform {
		for i := range p.hosts {
			p.hosts[i].weight = 1
		}
	}
	p.reloadHosts(now, changed)
}

// keepMatching returns, by host, whether it already hosts a planned variant, and lowers the wanted counts.
func (p *hosted) keepMatching(plan []placement) []bool {
	kept := make([]bool, len(p.hosts))
	for i := range plan {
		need := plan[i].devices
		for k := range p.hosts {
			h := &p.hosts[k]
			if need > 0 && !kept[k] && h.kind == plan[i].kind && h.family == plan[i].family && h.variant == plan[i].variant {
				kept[k] = true
				need--
			}
		}
	}
	return kept
}

// fillOthers gives the remaining hosts the variants that the plan still lacks, those of the same family first. It
// returns the changed hosts with their previous family. A host without a planned variant keeps its own.
func (p *hosted) fillOthers(plan []placement, kept []bool) map[int]int32 {
	changed := make(map[int]int32)
	for _, sameFamily := range []bool{true, false} {
		for _, x := range plan {
			need := x.devices - p.hosting(x, kept)
			for k := range p.hosts {
				h := &p.hosts[k]
				if need <= 0 || kept[k] || h.kind != x.kind || sameFamily && h.family != x.family {
					continue
				}
				changed[k] = h.family
				h.family, h.variant = x.family, x.variant
				kept[k] = true
				need--
			}
		}
	}
	return changed
}

// hosting counts the kept hosts that host a placement's variant.
func (p *hosted) hosting(x placement, kept []bool) int {
	n := 0
	for k := range p.hosts {
		if h := &p.hosts[k]; kept[k] && h.kind == x.kind && h.family == x.family && h.variant == x.variant {
			n++
		}
	}
	return n
}

// reloadHosts loads the new variants and binds the requests of the changed hosts again.
func (p *hosted) reloadHosts(now sched.Time, changed map[int]int32) {
	type bound struct{ r, family int32 }
	var moved []bound

	// Go through the hosts, because a map has no order.
	for k := range p.hosts {
		before, ok := changed[k]
		if !ok {
			continue
		}

		h := &p.hosts[k]
		m := &p.w.Models[h.family]
		h.profile = m.Variants[h.variant].Profiles[h.kind]
		h.planned, h.size, h.wake = max(1, halfBatch(m.SLO, h.profile)), 1, sched.Never

		if p.loadTime > 0 && p.tick > 0 { // the first placement is loaded before time begins
			p.w.Load(h.device, p.loadTime)
			h.readyAt = p.w.FreeAt(h.device)
		}

		// Requests of another family cannot stay, and others need not wait for the load.
		if h.family != before || p.loadTime > 0 {
			for h.queue.Len() > 0 {
				moved = append(moved, bound{h.queue.Take(1)[0], before})
			}
		}
	}

	// Route only when every host has its new variant; a request that no host takes is dropped.
	for _, b := range moved {
		if h := p.route(now, b.family); h != nil {
			h.queue.Insert(p.w, b.r)
		} else {
			p.w.Drop(b.r)
		}
	}

	for k := range p.hosts {
		p.startIdle(now, &p.hosts[k])
	}
}
