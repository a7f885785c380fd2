package sim

import (
	"slices"
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
)

// zooFamilies are the networks in Symphony's tables that come in several sizes, with the ImageNet top-1 accuracy that
// Keras publishes for each.
var zooFamilies = [][]size{
	{{name: "ResNet50V2", accuracy: 0.760}, {name: "ResNet101V2", accuracy: 0.772}, {name: "ResNet152V2", accuracy: 0.780}},
	{{name: "DenseNet121", accuracy: 0.750}, {name: "DenseNet169", accuracy: 0.762}, {name: "DenseNet201", accuracy: 0.773}},
	{{name: "EfficientNetB0", accuracy: 0.771}, {name: "EfficientNetB2", accuracy: 0.801}, {name: "EfficientNetB4", accuracy: 0.829}},
	{{name: "EfficientNetV2B0", accuracy: 0.787}, {name: "EfficientNetV2B2", accuracy: 0.805}, {name: "EfficientNetV2S", accuracy: 0.839}},
	{{name: "ResNet50", accuracy: 0.749}, {name: "ResNet101", accuracy: 0.764}, {name: "ResNet152", accuracy: 0.766}},
}

// zooModels returns zooFamilies as World models on kinds of GPUs, with the heaviest variant's SLO on the slowest
// kind. largest keeps only the heaviest variant.
func zooModels(t *testing.T, largest bool, kinds ...[]profile.Entry) (all []Model) {
	t.Helper()
	for _, family := range zooFamilies {
		slo := time.Duration(0)
		var sizes []size
		for _, s := range family {
			for _, kind := range kinds {
				i := slices.IndexFunc(kind, func(e profile.Entry) bool { return e.Name == s.name })
				if i < 0 {
					t.Fatalf("no profile of %s", s.name)
				}
				s.lines = append(s.lines, [2]time.Duration{kind[i].Alpha, kind[i].Beta})
				slo = max(slo, kind[i].SLO)
			}
			sizes = append(sizes, s)
		}
		if largest {
			sizes = sizes[len(sizes)-1:]
		}
		all = append(all, drawFamily(t, sizes[0].name, Duration(slo), sizes...))
	}
	return all
}

// TestFamiliesWhereTheLargestAloneDrops: at the load where the largest variants alone leave 1 % of the requests
// without an answer in time, families keep 99.9 % within the SLO at 0.98 of the accuracy or more, on the GPUs of
// either of Symphony's tables and on both together.
func TestFamiliesWhereTheLargestAloneDrops(t *testing.T) {
	const gpus, span = 16, 5 * time.Second
	for name, kinds := range map[string][][]profile.Entry{
		"1080Ti": {profile.GTX1080Ti()}, "A100": {profile.A100()}, "both": {profile.GTX1080Ti(), profile.A100()},
	} {
		serve := func(models []Model, rate float64) (bad, accuracy float64) {
			w := &World{Models: models, GPUs: gpus, Arrivals: arrivals.NewUnit(1, arrivals.Poisson, arrivals.Even(len(models)), 1.1*rate*span.Seconds()).At(rate, span, nil)}
			for g := range gpus {
				w.Kinds = append(w.Kinds, uint8(g*len(kinds)/gpus))
			}
			a, lost := watchAnswers(w), 0
			w.Ended = func(_ int32, o Outcome, _ Time) {
				if o != Served {
					lost++
				}
			}
			w.Run(NewDownbeat(w))
			return float64(lost) / float64(len(w.Arrivals)), a.mean(0, len(a.requests))
		}

		// Bisection finds the load, because a higher load drops more.
		alone, families := zooModels(t, true, kinds...), zooModels(t, false, kinds...)
		low, high := 100.0, 30_000.0
		for high/low > 1.005 {
			middle := (low + high) / 2
			if bad, _ := serve(alone, middle); bad < 0.01 {
				low = middle
			} else {
				high = middle
			}
		}

		aloneBad, best := serve(alone, high)
		bad, accuracy := serve(families, high)
		t.Logf("%s: %.0f requests/s: the largest alone %.4f bad at %.4f; families %.5f bad at %.4f, %.4f of it", name, high, aloneBad, best, bad, accuracy, accuracy/best)
		if bad > 0.001 || accuracy < 0.98*best {
			t.Errorf("%s: at %.0f requests/s %.5f bad and %.4f of the largest's accuracy: want at most 0.001 and at least 0.98", name, high, bad, accuracy/best)
		}
	}
}
