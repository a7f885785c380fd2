package plan

// Signals are three demands of each kind, in GPUs (UNIFIED U11): they say what more GPUs would buy.
type Signals struct {
	Full  []float64 // with everybody's most accurate offer: the price would be 0
	Now   []float64 // at the present prices
	Floor []float64 // with everybody's lightest offer at or above its floor
}

// Measure computes the signals of a market into s's memory. Where a bidder has equal offers on
// several kinds, full and floor count the one that takes the smallest share of its kind.
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

		// Each demand counts on the kind that its offer is on.
		s.Full[b.Offers[full].Kind] += b.Rate * b.Offers[full].Cost
		s.Floor[b.Offers[floor].Kind] += b.Rate * b.Offers[floor].Cost
		if now := b.Choose(price, m.Value); now != NotServed {
			s.Now[b.Offers[now].Kind] += b.Rate * b.Offers[now].Cost
		}
	}
	return nil
}

// Relief is one step of the order in which load is taken off (UNIFIED U10). Each step includes those
// before it.
type Relief int

// The steps.
const (
	NoRelief       Relief = iota // everybody has its best, and spare work runs
	StopSpareWork                // no GPU time is left over: spare work stops by itself
	LowerAccuracy                // prices are above 0: variants get lighter, steepest saving first, to the floors
	SkipFrames                   // sessions that allow it lose frames
	RefuseSessions               // no new sessions
	DropRequests                 // the windowed drop, with a debt per model
)

// String names a step as metrics and explanations do.
func (r Relief) String() string {
	return [...]string{"none", "stop spare work", "lower accuracy", "skip frames", "refuse sessions", "drop requests"}[r]
}

// Relieve returns how far load must be taken off one kind, the share of the skippable frames to skip, and
// how many GPUs more (at u* = 1) would make all of it unnecessary. Demands and capacity are in GPUs;
// capacity is u*·N; skippable is the part of floor that sessions allow to be skipped.
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
