package scaling

// spread gives unused devices of a plan to families, one after another to the family with the most demand per
// capacity. A device gets the most accurate variant that runs on it, if that is at least as accurate as the family's
// present mean: so it adds slack and costs no accuracy.
func (p *Program) spread(plan []placement, options []option, demand []float64, fixed [][]int) []placement {
	used := make(map[[2]int]int) // by (kind, family); (kind, -1) is the kind's sum
	for _, x := range plan {
		used[[2]int{x.kind, int(x.family)}] += x.devices
		used[[2]int{x.kind, -1}] += x.devices
	}

	for kind, n := range p.devices {
		for used[[2]int{kind, -1}] < n {
			best, load := -1, 0.0
			for i, o := range options {
				if o.kind != kind || fixed != nil && used[[2]int{kind, o.family}] >= fixed[kind][o.family] {
					continue
				}

				// The remaining devices make their families faster, never less accurate.
				capacity, accuracy := p.state(plan, int32(o.family))
				if o.accuracy < accuracy-1e-9 {
					continue
				}
				l := max(demand[o.family], demandMin) / (capacity + 1e-9)
				if l > load*(1+1e-9) || best >= 0 && o.family == options[best].family && o.accuracy > options[best].accuracy {
					best, load = i, max(l, load)
				}
			}

			if best < 0 {
				break
			}

			plan = p.add(plan, options[best], demand)
			used[[2]int{kind, options[best].family}]++
			used[[2]int{kind, -1}]++
		}
	}
	return plan
}

// state returns a family's planned capacity and mean accuracy.
func (p *Program) state(plan []placement, family int32) (capacity, accuracy float64) {
	rate := 0.0
	for _, x := range plan {
		if x.family == family {
			capacity += float64(x.devices) * p.capacity(x.kind, int(family), int(x.variant))
			accuracy += x.rate * p.models[family].Variants[x.variant].Accuracy
			rate += x.rate
		}
	}

	if rate > 0 {
		accuracy /= rate
	}
	return capacity, accuracy
}

// add adds a device for an option to the plan. It takes its part of the family's requests from the least accurate
// placements.
func (p *Program) add(plan []placement, o option, demand []float64) []placement {
	capacity, _ := p.state(plan, int32(o.family))
	rate := max(demand[o.family], demandMin) * o.capacity / (capacity + o.capacity)

	// The new device takes its share of the load from the least accurate ones.
	for left := rate; left > 1e-9; {
		worst := -1
		for i, x := range plan {
			if int(x.family) == o.family && x.rate > 1e-9 && (worst < 0 || p.accuracy(x) < p.accuracy(plan[worst])) {
				worst = i
			}
		}
		if worst < 0 {
			break
		}
		part := min(left, plan[worst].rate)
		plan[worst].rate -= part
		left -= part
	}

	for i := range plan {
		if x := &plan[i]; x.kind == o.kind && int(x.family) == o.family && int(x.variant) == o.variant {
			x.devices++
			x.rate += rate
			return plan
		}
	}
	return append(plan, placement{o.kind, int32(o.family), int32(o.variant), 1, rate})
}

func (p *Program) accuracy(x placement) float64 {
	return p.models[x.family].Variants[x.variant].Accuracy
}
