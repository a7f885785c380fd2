package engine

// shareCrowds tells every partition how crowded the sub-clusters are with models of all partitions. Each partition
// keeps its own copy of the sums, so a decision reads them under its own lock.
func (g *registry) shareCrowds() {
	if len(g.e.parts) == 1 {
		return // one partition knows all models
	}

	g.crowds = g.crowds[:0]
	for _, p := range g.e.parts {
		p.mu.Lock()
		g.crowds = p.s.AddCrowds(g.crowds)
		p.mu.UnlockBehind()
	}

	// One lock at a time, so partitions may see the sums of slightly different moments.
	for _, p := range g.e.parts {
		p.mu.Lock()
		p.s.SetCrowds(g.crowds)
		p.mu.UnlockBehind()
	}
}
