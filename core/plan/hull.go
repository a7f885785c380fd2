package plan

// Hull appends to into[:0] the offers of a bidder on one kind that are best at some price, from the lightest to the
// most accurate: the upper concave hull of (cost, accuracy), at or above the floor (UNIFIED U1). An offer below the
// line between two others is never better than a mixture of them.
func (b *Bidder) Hull(kind int32, into []int32) []int32 {
	hull := into[:0]
	for {
		// Start with the lightest offer. The next corner is the offer that adds the most accuracy per cost.
		next := Nowhere
		for j := range b.Offers {
			o := &b.Offers[j]
			if o.Kind != kind || o.Accuracy < b.Floor {
				continue
			}
			switch {
			case len(hull) == 0:
				if next == Nowhere || lighter(o, &b.Offers[next]) {
					next = j
				}
			case o.Accuracy > b.Offers[hull[len(hull)-1]].Accuracy:
				if next == Nowhere || steeper(&b.Offers[hull[len(hull)-1]], o, &b.Offers[next]) {
					next = j
				}
			}
		}

		// No offer is more accurate.
		if next == Nowhere {
			return hull
		}
		hull = append(hull, int32(next))
	}
}

// lighter reports whether a costs less than b, or the same and is better.
func lighter(a, b *Offer) bool {
	return a.Cost < b.Cost || a.Cost == b.Cost && a.Accuracy > b.Accuracy
}

// steeper reports whether the step from an offer to a adds more accuracy per cost than the step to b, or the same in
// a longer step.
func steeper(from, a, b *Offer) bool {
	left := (a.Accuracy - from.Accuracy) * (b.Cost - from.Cost)
	right := (b.Accuracy - from.Accuracy) * (a.Cost - from.Cost)
	return left > right || left == right && a.Accuracy > b.Accuracy
}

// Choose returns the offer that a bidder takes at prices by kind: the one with the largest value of an answer plus
// accuracy minus price·cost, or NotServed if none is worth its price. Ties go to the cheaper one.
func (b *Bidder) Choose(price []float64, value float64) int32 {
	best, most := int32(NotServed), 0.0
	for j := range b.Offers {
		o := &b.Offers[j]
		if o.Accuracy < b.Floor {
			continue
		}

		gain := value + o.Accuracy - price[o.Kind]*o.Cost
		if gain > most || gain == most && best != NotServed && o.Cost < b.Offers[best].Cost {
			best, most = int32(j), gain
		}
	}
	return best
}
