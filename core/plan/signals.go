package plan

// Signals are three demands of each kind, in GPUs (UNIFIED U11). They show what more GPUs would gain.
type Signals struct {
	Full  []float64 // with the most accurate offer of every bidder: the price would be 0
	Now   []float64 // at the present prices
	Floor []float64 // with the lightest offer of every bidder at or above its floor
}

// Measure computes the signals of a market into s's memory. If a bidder has equal offers on several kinds, Full and
// Floor count the offer that takes the smallest share of its kind.
func (s *Signals) Measure(m *Market, price []float64) error {
	if err := m.validate(); err != nil {
		return err
	}
	if len(price) != len(m.Capacity) {
		return refuse("number of prices", len(price), "one for each kind")
	}
	for _, of := range []*[]float64{&s.Full, &s.Now, &s.Floor} {
		*of = resize(*of, len(m.Capacity))
		clear(*of)
	}

	for q := range m.Bidders {
		b := &m.Bidders[q]
		full, floor := Nowhere, Nowhere
		for j := range b.Offers {
			o := &b.Offers[j]
			if o.Accuracy < b.Floor {
				continue
			}

			share := o.Cost / max(m.Capacity[o.Kind], 1e-9)
			if full == Nowhere || o.Accuracy > b.Offers[full].Accuracy ||
				o.Accuracy == b.Offers[full].Accuracy && share < b.Offers[full].Cost/max(m.Capacity[b.Offers[full].Kind], 1e-9) {
				full = j
			}
			if floor == Nowhere || share < b.Offers[floor].Cost/max(m.Capacity[b.Offers[floor].Kind], 1e-9) {
				floor = j
			}
		}

		if full == Nowhere {
			continue
		}

		// Each demand counts for the kind of its offer.
		s.Full[b.Offers[full].Kind] += b.Rate * b.Offers[full].Cost
		s.Floor[b.Offers[floor].Kind] += b.Rate * b.Offers[floor].Cost
		if now := b.Choose(price, m.Value); now != NotServed {
			s.Now[b.Offers[now].Kind] += b.Rate * b.Offers[now].Cost
		}
	}
	return nil
}

// Relief is one step in the order in which load is reduced (UNIFIED U10). Each step includes the steps before it.
type Relief int

// The steps.
const (
	NoRelief       Relief = iota // all bidders have their best offer, and spare work runs
	StopSpareWork                // no GPU time is left over, so spare work stops by itself
	LowerAccuracy                // prices are above 0: variants become lighter down to the floors, the largest saving per accuracy first
	SkipFrames                   // sessions that allow it skip frames
	RefuseSessions               // no new sessions
	DropRequests                 // the windowed drop, with a debt per model
)

// String returns a step's name in metrics and explanations.
func (r Relief) String() string {
	return [...]string{"none", "stop spare work", "lower accuracy", "skip frames", "refuse sessions", "drop requests"}[r]
}

// Relieve returns how far the load of one kind must be reduced, the share of the skippable frames to skip, and the
// number of additional GPUs (at u* = 1) that would make the reduction unnecessary. Demands and capacity are in GPUs;
// capacity is u*·N. skippable is the part of floor that sessions allow to be skipped.
func Relieve(full, floor, skippable, capacity float64) (step Relief, skipShare, missing float64) {
	missing = max(0, full-capacity)
	switch over := floor - capacity; {
	case full < capacity:
		return NoRelief, 0, 0
	case full == capacity:
		return StopSpareWork, 0, 0
	case over <= 0:
		return LowerAccuracy, 0, missing
	case over < skippable:
		return SkipFrames, over / skippable, missing
	case over == skippable:
		return RefuseSessions, 1, missing
	case skippable > 0:
		return DropRequests, 1, missing
	}
	return DropRequests, 0, missing
}
