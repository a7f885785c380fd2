package sim

import (
	"testing"
	"time"

	"downbeat.dev/core/profile"
)

// kerasFamilies are models of Symphony's table 5 that are sizes of one network, the lightest first, with the accuracy
// (top 1) that Keras publishes for each.
var kerasFamilies = [][]struct {
	name     string
	accuracy float64
}{
	{{"ResNet50V2", 0.760}, {"ResNet101V2", 0.772}, {"ResNet152V2", 0.780}},
	{{"ResNet50", 0.749}, {"ResNet101", 0.764}, {"ResNet152", 0.766}},
	{{"DenseNet121", 0.750}, {"DenseNet169", 0.762}, {"DenseNet201", 0.773}},
	{{"EfficientNetB0", 0.771}, {"EfficientNetB1", 0.791}, {"EfficientNetB2", 0.801}},
	{{"EfficientNetV2S", 0.839}, {"EfficientNetV2M", 0.853}, {"EfficientNetV2L", 0.857}},
	{{"MobileNetV3Small", 0.681}, {"MobileNetV3Large", 0.756}},
}

// kerasWorld is a World of 16 GPUs of table 5 under a load in multiples of what its most accurate variants need if
// their batches gain all that batching can. Either all variants may answer, or the most accurate ones alone.
func kerasWorld(t *testing.T, load float64, alone bool) *World {
	t.Helper()
	entries := map[string]profile.Entry{}
	for _, e := range profile.GTX1080Ti() {
		entries[e.Name] = e
	}

	w := &World{GPUs: 16}
	var rates []float64
	for _, sizes := range kerasFamilies {
		best := entries[sizes[len(sizes)-1].name]
		m := Model{Name: best.Name, SLO: Duration(best.SLO)}
		for i, x := range sizes {
			if alone && i < len(sizes)-1 {
				continue
			}
			e := entries[x.name]
			p, err := profile.Linear(e.Alpha, e.Beta, 64)
			if err != nil {
				t.Fatal(err)
			}
			m.Variants = append(m.Variants, Variant{Name: x.name, Accuracy: x.accuracy, Profiles: []*profile.Profile{p}})
		}
		w.Models = append(w.Models, m)
		rates = append(rates, load*float64(w.GPUs)/float64(len(kerasFamilies))/best.Alpha.Seconds())
	}
	w.ask(7, 0, 10*time.Second, rates...)
	return w
}

// runKeras returns the share of the requests that were not served in time, and the mean of the answers' accuracy over
// that of the most accurate variant.
func runKeras(t *testing.T, load float64, alone bool) (bad, accuracy float64) {
	w := kerasWorld(t, load, alone)
	served := 0
	w.Answered = func(_, model, variant int32, _, finish Time, requests []int32) {
		m := &w.Models[model]
		for _, r := range requests {
			if finish <= w.Deadline(r) {
				served++
				accuracy += m.Variants[variant].Accuracy / m.Variants[len(m.Variants)-1].Accuracy
			}
		}
	}
	w.Run(NewDownbeat(w))
	return 1 - float64(served)/float64(len(w.Arrivals)), accuracy / float64(max(1, served))
}

// TestFamiliesCarryWhatTheBestAloneDrops: at the load at which the most accurate variants alone drop 1 %, families keep
// 99.9 % of the requests within the SLO, at 0.98 of the accuracy at least.
func TestFamiliesCarryWhatTheBestAloneDrops(t *testing.T) {
	low, high := 0.2, 1.2
	for high-low > 0.005 {
		load := (low + high) / 2
		if bad, _ := runKeras(t, load, true); bad < 0.01 {
			low = load
		} else {
			high = load
		}
	}

	alone, _ := runKeras(t, high, true)
	bad, accuracy := runKeras(t, high, false)
	t.Logf("at %.3f of the GPUs' time the best alone drop %.2f %%; families drop %.3f %% at %.4f of the accuracy", high, 100*alone, 100*bad, accuracy)
	if bad > 0.001 || accuracy < 0.98 {
		t.Errorf("families drop %.3f %% at %.4f of the accuracy, want 0.1 %% and 0.98", 100*bad, accuracy)
	}
}
