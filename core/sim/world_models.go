package sim

import (
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
)

// Time and Duration are the scheduler's, in virtual nanoseconds.
type (
	Time     = sched.Time
	Duration = sched.Duration
)

// Model is a model or a family in a World; a family's requests may be answered by any variant.
type Model struct {
	Name    string
	Profile *profile.Profile // of a model without variants, on every GPU
	SLO     Duration
	// Rate is the true arrival rate in requests/s, for policies that may know it; 0: unknown.
	Rate float64
	// SubCluster is the kind of GPU that serves a model without variants, if the Server separates kinds.
	SubCluster uint32
	// Variants are the members of a family; nil for a single model.
	Variants []Variant
	// Floor is the lowest acceptable accuracy of a family's answer, 0 to 1.
	Floor float64
}

// Variant is one accuracy level of a family.
type Variant struct {
	Name     string
	Accuracy float64 // 0 to 1
	// Profiles are ℓ(b) by kind of GPU; nil: the variant does not run on that kind.
	Profiles []*profile.Profile
}
