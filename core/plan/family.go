package plan

import (
	"cmp"
	"slices"
	"time"

	"downbeat.dev/core/model"
)

// OrderVariants sorts a family's models in the order of their numbers: the most accurate first, and equal ones by
// name and version. So a variant's number does not depend on the order of arrival.
func OrderVariants[T any](all []T, info func(T) *model.Info) {
	slices.SortStableFunc(all, func(a, b T) int {
		x, y := info(a), info(b)
		return cmp.Or(-cmp.Compare(x.Accuracy, y.Accuracy), cmp.Compare(x.Name, y.Name), -model.CompareVersions(x.Version, y.Version))
	})
}

// IsVariant reports whether a model may answer for its family. A model that states no accuracy cannot be compared.
func IsVariant(m *model.Info) bool { return m.Accuracy > 0 }

// KeepsFloor reports whether an answer of this accuracy meets a floor.
func KeepsFloor(accuracy, floor float64) bool { return accuracy >= floor }

// Outdates reports whether a model answers instead of another when both are loaded. During an update two versions are
// in one place, and only the newer one answers.
func Outdates(newer, old *model.Info) bool {
	return newer.Name == old.Name && model.CompareVersions(newer.Version, old.Version) > 0
}

// FloorsOf returns the floors of a family's classes in ascending order: one that all variants keep, and others at the
// variants' accuracies. If there are more accuracies than most allows, some are skipped, because a class with a
// higher floor serves as well. accuracies are the variants', the highest first. No variant below least answers.
func FloorsOf(accuracies []float64, least float64, most int) (floors []float64) {
	for _, a := range slices.Backward(accuracies) {
		if a >= least && (len(floors) == 0 || a > floors[len(floors)-1]) {
			floors = append(floors, a)
		}
	}

	if n := len(floors); n > most {
		for k := range most {
			floors[k] = floors[k*(n-1)/(most-1)]
		}
		floors = floors[:most]
	}
	return floors
}

// NewClass is the position of a floor that no existing class can have.
const NewClass = -1

// PlaceFloors returns the class of each floor, or NewClass. told are the announced floors of the classes. Requests
// that rely on them may be on their way, so the floor of a class never falls: it stays, or rises if the lower one is
// no longer needed.
func PlaceFloors(floors, told []float64) (at []int) {
	taken := make([]bool, len(told))

	// An existing floor keeps its class before any other class is raised.
	for _, floor := range floors {
		i := slices.Index(told, floor)
		if i < 0 {
			i = NewClass
		} else {
			taken[i] = true
		}
		at = append(at, i)
	}

	for k, floor := range floors {
		for i := range told {
			if at[k] == NewClass && !taken[i] && told[i] < floor {
				at[k], taken[i] = i, true
			}
		}
	}
	return at
}

// ServableSLO returns the SLO in force of a service whose fastest batch of one request takes the time one. A shorter
// SLO could never be kept.
func ServableSLO(slo, one time.Duration) time.Duration { return max(slo, one) }

// QueueLimit returns how many requests of a model may be queued: the smaller of its own limit and the limit of all.
// Zero means no limit.
func QueueLimit(own, all int) int {
	if own > 0 && (all == 0 || own < all) {
		return own
	}
	return all
}
