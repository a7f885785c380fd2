package engine

// shareCrowds tells every partition how crowded sub-clusters are with the models of all of them, which are spread
// without regard to that. Each partition holds its own copy of the sums, so that a decision reads them under its own
// lock alone.
func (g *registry) shareCrowds() {
	if len(g.e.parts) == 1 {
		return // it knows all models
	}

	g.crowds = g.crowds[:0]
	for _, p := range g.e.parts {
		p.mu.Lock()
		g.crowds = p.s.AddCrowds(g.crowds)
		p.mu.Unlock()
	}

	for _, p := range g.e.parts {
		p.mu.Lock()
		p.s.SetCrowds(g.crowds)
		p.mu.Unlock()
	}
}
