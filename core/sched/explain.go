package sched

// Way is one way to answer a service's requests, a variant in a home, with the values that decisions currently use.
type Way struct {
	SubCluster uint32
	Variant    uint16
	Batch      int     // the batch size that the rate and the budget allow
	Cost       float64 // GPU seconds per request in such a batch
	Price      float64 // of a GPU second, in units of accuracy per request
	InTime     bool    // a batch of one finishes within the usual budget
	Intended   bool    // the current price selects it among the home's variants
	Main       bool    // in the home where the service intends to be served
	InUse      bool    // in a home that is asked for GPUs at once, because it is nearly as good as the main one
	Staffed    bool    // in a home that has GPUs
}

// Ways appends a service's ways to answer to all: by home, the quickest variant first. It omits variants below the
// service's floor and variants that are not resident in a home.
func (p *Partition) Ways(id ModelID, all []Way) []Way {
	m, _ := p.find(id)
	switch {
	case m == nil:
		return all
	case m.family == nil:
		return append(all, Way{SubCluster: m.sub, Variant: m.variant, Batch: m.target, Cost: float64(m.exec[m.target]) / float64(m.target) / 1e9,
			Price: p.priceOf(m.sub), InTime: m.lead[1] <= m.budget, Intended: true, Main: true, InUse: true, Staffed: p.hasGPUs(m.sub)})
	}

	f := m.family
	for k := range f.homes {
		h := &f.homes[k]
		for i := range h.residents {
			r := &h.residents[i]
			all = append(all, Way{SubCluster: h.sub, Variant: r.variant, Batch: r.target, Cost: r.cost, Price: p.priceOf(h.sub),
				InTime: r.lead[1] <= m.budget, Intended: i == h.intended, Main: k == f.main, InUse: h.inUse, Staffed: h.hasGPUs})
		}
	}
	return all
}

// BudgetOf returns the usual budget of a service's requests on arrival; 0 for an unknown service.
func (p *Partition) BudgetOf(id ModelID) Duration {
	if m, _ := p.find(id); m != nil {
		return m.budget
	}
	return 0
}
