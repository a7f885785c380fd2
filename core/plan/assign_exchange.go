package plan

// exchange moves service i to sub-cluster q, and service k, unless Nowhere, to where i was.
type exchange struct {
	i, k int32
	q    int
	gain float64
}

// eachExchange calls try for every service of p alone, and with every service of q.
func (s *assignmentSearch) eachExchange(p, q int, try func(i, k int32)) {
	for _, i := range s.loads[p].members {
		// Each try counts, so that the effort bounds the time whatever the problem's size is.
		s.tried += 1 + len(s.loads[q].members)
		try(i, Nowhere)
		for _, k := range s.loads[q].members {
			try(i, k)
		}
	}
}

// isAllowed reports whether an exchange breaks no limit.
func (s *assignmentSearch) isAllowed(i, k int32, p, q int) bool {
	return s.spent+s.moveCost(i, k, q) <= s.budget && s.overload(p, i, k)+s.overload(q, k, i) == 0
}
