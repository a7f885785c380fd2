package plan

import (
	"slices"
	"testing"
	"time"

	"downbeat.dev/core/model"
)

// TestVariantsHaveOneOrder shows that the order does not depend on the order of arrival.
func TestVariantsHaveOneOrder(t *testing.T) {
	all := []model.Info{
		{Name: "b", Version: "1", Accuracy: 0.8}, {Name: "a", Version: "2", Accuracy: 0.8},
		{Name: "a", Version: "10", Accuracy: 0.8}, {Name: "c", Version: "1", Accuracy: 0.9},
	}
	for range 2 {
		slices.Reverse(all)
		var names []string
		ordered := slices.Clone(all)
		OrderVariants(ordered, func(m model.Info) *model.Info { return &m })
		for _, m := range ordered {
			names = append(names, m.Name+m.Version)
		}
		if want := []string{"c1", "a10", "a2", "b1"}; !slices.Equal(names, want) {
			t.Errorf("variants %v, want %v", names, want)
		}
	}
}

// TestFloorsAreVariantsAccuracies shows that each floor is a variant's accuracy above the least, that none occurs
// twice, and that the lowest and the highest are always included.
func TestFloorsAreVariantsAccuracies(t *testing.T) {
	for _, c := range []struct {
		accuracies []float64
		least      float64
		most       int
		want       []float64
	}{
		{nil, 0, 4, nil},
		{[]float64{0.9}, 0.95, 4, nil},
		{[]float64{0.9, 0.9, 0.8}, 0, 4, []float64{0.8, 0.9}},
		{[]float64{0.9, 0.8, 0.7}, 0.8, 4, []float64{0.8, 0.9}},
		{[]float64{0.9, 0.8, 0.7, 0.6, 0.5, 0.4}, 0, 4, []float64{0.4, 0.5, 0.7, 0.9}},
	} {
		if got := FloorsOf(c.accuracies, c.least, c.most); !slices.Equal(got, c.want) {
			t.Errorf("floors of %v from %v: %v, want %v", c.accuracies, c.least, got, c.want)
		}
	}
}

// TestOnlyTheNewerVersionAnswers shows that of two versions of a model only the newer one answers, and that versions
// are compared as numbers.
func TestOnlyTheNewerVersionAnswers(t *testing.T) {
	old, newer, other := &model.Info{Name: "a", Version: "9"}, &model.Info{Name: "a", Version: "10"}, &model.Info{Name: "b", Version: "11"}
	if !Outdates(newer, old) || Outdates(old, newer) || Outdates(old, old) || Outdates(other, old) {
		t.Error("a version is outdated by a newer one of its model alone")
	}
	if IsVariant(old) || !IsVariant(&model.Info{Accuracy: 0.1}) {
		t.Error("a variant is what says its accuracy")
	}
}

func TestQueueLimit(t *testing.T) {
	for _, c := range []struct{ own, all, want int }{{0, 0, 0}, {5, 0, 5}, {5, 9, 5}, {9, 5, 5}, {0, 5, 5}} {
		if got := QueueLimit(c.own, c.all); got != c.want {
			t.Errorf("a limit of its own %d, of all %d: %d, want %d", c.own, c.all, got, c.want)
		}
	}
	if ServableSLO(time.Millisecond, 2*time.Millisecond) != 2*time.Millisecond {
		t.Error("an SLO below a batch of one")
	}
}

// TestLoadsWaitForAnIdleGPU shows that a load does not wait forever, nor does a scheduler for a backend's report.
func TestLoadsWaitForAnIdleGPU(t *testing.T) {
	if LoadNow(false, idleMost-1) || !LoadNow(false, idleMost) || !LoadNow(true, 0) {
		t.Error("a load begins when the GPU is idle, or after some time")
	}
	if IsGone(awayMost-1) || !IsGone(awayMost) {
		t.Error("a plan does not wait for a GPU that is away as it says")
	}
	if StepOverdue(reportMost-1) || !StepOverdue(reportMost) {
		t.Error("a step is overdue after ten minutes")
	}
	if LoadTime(0) != loadUnknown || LoadTime(-1) != loadUnknown || LoadTime(time.Minute) != time.Minute || LoadTime(1<<62) != reportMost {
		t.Error("a load that nobody timed")
	}
}

// TestPlaceFloors shows that a floor keeps its class, and that a new floor gets an unneeded class whose floor rises,
// never one whose floor would fall.
func TestPlaceFloors(t *testing.T) {
	for _, c := range []struct {
		floors, told []float64
		want         []int
	}{
		{[]float64{0.5, 0.9}, nil, []int{NewClass, NewClass}},
		{[]float64{0.9, 0.95}, []float64{0.5, 0.9, 0.95}, []int{1, 2}},
		{[]float64{0.5, 0.9}, []float64{0.9}, []int{NewClass, 0}},
		{[]float64{0.8, 0.91}, []float64{0.8, 0.9}, []int{0, 1}},
		{[]float64{0.6, 0.7}, []float64{0.5, 0.9}, []int{0, NewClass}},
		{nil, []float64{0.5}, nil},
	} {
		if at := PlaceFloors(c.floors, c.told); !slices.Equal(at, c.want) {
			t.Errorf("floors %v among %v: %v, want %v", c.floors, c.told, at, c.want)
		}
	}
}
