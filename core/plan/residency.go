package plan

import "fmt"

// VariantMemory is what a variant takes on each GPU of its sub-cluster.
type VariantMemory struct {
	Static, Dynamic int64 // bytes: while loaded; besides, while a batch runs
	// Shared of the static bytes are of the layers that all variants of one Trunk have in common, as Fleet says; 0 and 0: none.
	Shared int64
	Trunk  int32
}

// ResidencyProblem asks which variants the GPUs of one sub-cluster hold.
type ResidencyProblem struct {
	Market   Market    // who is served there; one kind
	Variant  [][]int32 // by bidder and offer: its variant; bidders of one family share variants
	Variants []VariantMemory
	Memory   int64 // bytes of one GPU
}

// Residency is the variants to hold.
type Residency struct {
	Keep  []bool  // by variant
	Value float64 // the market's with these variants (Prices.Value)
	Most  float64 // what all of them would give
}

// KeepVariants chooses the variants whose market is worth most, so that Σ static + max dynamic fits the
// memory (UNIFIED U5). Every bidder keeps its lightest offer, so that an overload makes answers worse
// before it drops requests. From all variants, those go first that lose least per byte at the present
// price; then what still fits comes back, and exchanges are tried.
//
// It fails with an InfeasibleError where the lightest variants alone do not fit.
func KeepVariants(r ResidencyProblem) (Residency, error) {
	if err := r.validate(); err != nil {
		return Residency{}, err
	}
	s := &residencySearch{r: &r, keep: make([]bool, len(r.Variants)), must: make([]bool, len(r.Variants))}
	if err := s.requireLightest(); err != nil {
		return Residency{}, err
	}

	// All variants together are the bound, and where dropping starts.
	for v := range s.keep {
		s.keep[v] = true
	}
	most, err := s.value()
	if err != nil {
		return Residency{}, err
	}
	s.dropUntilFits()
	value := s.refill()
	return Residency{Keep: s.keep, Value: value, Most: most}, nil
}

func (r *ResidencyProblem) validate() error {
	// The search renews the market hundreds of times, so what is wrong with it is told here, once.
	if len(r.Market.Capacity) != 1 {
		return refuse("number of kinds in a sub-cluster", len(r.Market.Capacity), "1")
	}
	if err := r.Market.validate(); err != nil {
		return err
	}

	if r.Memory < 1 || r.Memory > bytesMax {
		return refuse("memory of a GPU", r.Memory, "1 to 2⁴⁴ bytes")
	}
	if len(r.Variants) > servicesMax {
		return refuse("number of variants", len(r.Variants), fmt.Sprintf("at most %d", servicesMax))
	}

	for v, m := range r.Variants {
		if m.Static < 0 || m.Dynamic < 0 || m.Static > bytesMax || m.Dynamic > bytesMax {
			return refuse(fmt.Sprintf("variant %d: memory", v), fmt.Sprintf("%d static, %d dynamic", m.Static, m.Dynamic), "0 to 2⁴⁴ bytes")
		}
		if err := checkShared(fmt.Sprintf("variant %d", v), m.Static, m.Shared, m.Trunk); err != nil {
			return err
		}
	}

	if len(r.Variant) != len(r.Market.Bidders) {
		return refuse("number of bidders with variants", len(r.Variant), fmt.Sprint(len(r.Market.Bidders)))
	}
	for q, b := range r.Market.Bidders {
		if len(r.Variant[q]) != len(b.Offers) || len(b.Offers) == 0 {
			return refuse(fmt.Sprintf("bidder %d: number of variants", q), len(r.Variant[q]), fmt.Sprintf("one for each of its %d offers, and at least one", len(b.Offers)))
		}
		for j, v := range r.Variant[q] {
			if v < 0 || int(v) >= len(r.Variants) {
				return refuse(fmt.Sprintf("bidder %d: offer %d: variant", q, j), v, fmt.Sprintf("0 to %d", len(r.Variants)-1))
			}
		}
	}
	return nil
}

// residencySearch is a set of variants that is being improved.
type residencySearch struct {
	r          *ResidencyProblem
	keep, must []bool
	prices     Prices
	market     Market // of the variants kept
	offers     []Offer
}

// requireLightest marks each bidder's cheapest offer, or, if those together are too large, its
// smallest.
func (s *residencySearch) requireLightest() error {
	for _, smallest := range []bool{false, true} {
		// The cheapest offer carries an overload best. Where those do not fit together, the smallest at least
		// let everybody be answered.
		clear(s.must)
		for q, b := range s.r.Market.Bidders {
			best := Nowhere
			for j, o := range b.Offers {
				if o.Accuracy < b.Floor {
					continue
				}
				if best == Nowhere || !smallest && o.Cost < b.Offers[best].Cost || smallest && s.bytes(q, j) < s.bytes(q, best) {
					best = j
				}
			}

			s.must[s.r.Variant[q][best]] = true
		}

		if s.memory(s.must) <= s.r.Memory {
			return nil
		}
	}
	return &InfeasibleError{"memory for the lightest variant of everybody", float64(s.memory(s.must)), float64(s.r.Memory), "bytes"}
}

func (s *residencySearch) bytes(q, j int) int64 {
	v := s.r.Variants[s.r.Variant[q][j]]
	return v.Static + v.Dynamic
}

func (s *residencySearch) memory(set []bool) int64 {
	var w weight
	var dynamic int64
	for v, in := range set {
		if in {
			x := &s.r.Variants[v]
			w.addModel(x.Static, x.Shared, x.Trunk)
			dynamic = max(dynamic, x.Dynamic)
		}
	}
	return w.static + dynamic
}

// value is the market's value with the variants kept; it also renews prices.
func (s *residencySearch) value() (float64, error) {
	// The market of what is kept, in memory that the next try uses again.
	s.market = Market{Capacity: s.r.Market.Capacity, Value: s.r.Market.Value, Bidders: s.market.Bidders[:0]}
	s.offers = s.offers[:0]
	for q, b := range s.r.Market.Bidders {
		first := len(s.offers)
		for j, o := range b.Offers {
			if s.keep[s.r.Variant[q][j]] {
				s.offers = append(s.offers, o)
			}
		}
		s.market.Bidders = append(s.market.Bidders, Bidder{b.Rate, b.Floor, s.offers[first:len(s.offers):len(s.offers)]})
	}

	err := s.prices.Renew(&s.market)
	return s.prices.Value, err
}

// dropUntilFits drops the variant with the least loss per byte until memory suffices. Prices are
// renewed often enough that a hundred steps see a fresh one.
func (s *residencySearch) dropUntilFits() {
	every := max(1, len(s.keep)/100)
	for step := 0; s.memory(s.keep) > s.r.Memory; step++ {
		if step%every == 0 {
			_, _ = s.value() // the market was valid with all variants, and is with fewer
		}

		// What a variant frees includes dynamic memory if it has the largest.
		loss := s.losses()
		worst, least := Nowhere, 0.0
		before := s.memory(s.keep)
		for v := range s.keep {
			if !s.keep[v] || s.must[v] {
				continue
			}
			s.keep[v] = false
			freed := float64(before-s.memory(s.keep)) + 1
			s.keep[v] = true
			if density := loss[v] / freed; worst == Nowhere || density < least {
				worst, least = v, density
			}
		}
		s.keep[worst] = false
	}
}

// losses is what each kept variant's absence would cost its bidders at the present price, and a little
// of what it would cost at half and at twice that price: rates will change.
func (s *residencySearch) losses() []float64 {
	loss := make([]float64, len(s.keep))
	for i, weight := range []float64{1, 0.05, 0.05} {
		price := s.prices.Price[0] * []float64{1, 0.5, 2}[i]

		for q, b := range s.r.Market.Bidders {
			best, second := 0.0, 0.0
			chosen := Nowhere
			for j, o := range b.Offers {
				if !s.keep[s.r.Variant[q][j]] || o.Accuracy < b.Floor {
					continue
				}
				switch gain := s.r.Market.Value + o.Accuracy - price*o.Cost; {
				case gain > best:
					best, second, chosen = gain, best, j
				case gain > second:
					second = gain
				}
			}

			// Without its choice a bidder falls back to its second best; other variants cost it nothing.
			if chosen != Nowhere {
				loss[s.r.Variant[q][chosen]] += weight * b.Rate * (best - second)
			}
		}
	}
	return loss
}

// refill brings back what fits and exchanges kept variants for dropped ones while that is worth more.
// It tries at most some hundred sets.
func (s *residencySearch) refill() float64 {
	best, _ := s.value()
	tries := 400
	try := func(changed ...int) bool {
		for _, v := range changed {
			s.keep[v] = !s.keep[v]
		}

		// The market decides, not an estimate: this is the last word.
		if s.memory(s.keep) <= s.r.Memory && tries > 0 {
			tries--
			if now, err := s.value(); err == nil && now > best*(1+1e-12) {
				best = now
				return true
			}
		}
		for _, v := range changed {
			s.keep[v] = !s.keep[v]
		}
		return false
	}

	for better := true; better && tries > 0; {
		better = false
		for in := range s.keep {
			if s.keep[in] {
				continue
			}
			if try(in) {
				better = true
				continue
			}
			for out := range s.keep {
				if s.keep[out] && !s.must[out] && try(in, out) {
					better = true
					break
				}
			}
		}
	}
	return best
}
