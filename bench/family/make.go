package family

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"downbeat.dev/core/arrivals"
)

// Shape is a demand over time, in requests/s by second.
type Shape struct {
	Name string
	Rate func(second int) float64
}

// madeSpan is the length of a generated trace in seconds, as in the public ones.
const madeSpan = 291

// Shapes are the shapes of traces that Make generates. Diurnal and bursty follow the seconds of the public traces
// (mean 259/s with a busiest second of 1,025; 604/s and 1,155). figure4 follows the numbers of the paper's figure 4
// (387/s and 1,474), whose trace is not public.
var Shapes = []Shape{
	{"diurnal", func(s int) float64 { return diurnalRate(s) }},
	{"bursty", func(s int) float64 {
		if s/47%2 == 1 {
			return 1085
		}
		return 150
	}},
	{"figure4", func(s int) float64 { return 20 + 1.47*diurnalRate(s) }},
}

// diurnalRate has two peaks above a night's demand, and a spike every twelve seconds.
func diurnalRate(s int) float64 {
	bell := func(at, wide float64) float64 { return math.Exp(-math.Pow((float64(s)-at)/wide, 2)) }
	rate := 100 + 580*bell(90, 32) + 170*bell(238, 24)
	if s%12 == 8 {
		rate *= 1.45
	}
	return rate
}

// zipfOrder is the order of families by demand in the public traces.
var zipfOrder = []string{"mobilenet", "efficientnet", "resnest", "bert", "yolo", "densenet", "resnet", "t5", "gpt2"}

// FindShape returns the shape of a name.
func FindShape(name string) (Shape, error) {
	var names []string
	for _, s := range Shapes {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Shape{}, fmt.Errorf("%q: want %s", name, strings.Join(names, ", "))
}

// Make draws a trace of a shape. The demand is split over the families of the public traces by Zipf's law with
// exponent 1.001, with Poisson arrivals within each second (Proteus §6.1.3). The same seed gives the same trace.
func Make(shape Shape, seed uint64) *Trace {
	t := &Trace{Name: fmt.Sprintf("%s-%d", shape.Name, seed), Families: slices.Sorted(slices.Values(zipfOrder))}

	share := make([]float64, len(t.Families))
	for rank, s := range arrivals.Zipf(len(zipfOrder), 1.001) {
		share[slices.Index(t.Families, zipfOrder[rank])] = s
	}
	for f := range t.Families {
		t.SLO = append(t.SLO, 300*time.Millisecond)
		// Each family has its own generator, so that one family's demand does not change the others' arrivals.
		rng := rand.New(rand.NewPCG(seed, uint64(f)))
		for second := range madeSpan {
			rate := share[f] * shape.Rate(second)
			for at := rng.ExpFloat64() / rate; at < 1; at += rng.ExpFloat64() / rate {
				t.Arrivals = append(t.Arrivals, arrivals.Arrival{At: time.Duration((float64(second) + at) * 1e9), Model: int32(f)})
			}
		}
	}
	t.sortArrivals()
	return t
}

// MakeGaps draws a trace of constant demand, split as in Make, with renewal processes of the given gaps.
func MakeGaps(name string, gaps arrivals.Gaps, rate float64, span time.Duration, seed uint64) *Trace {
	t := &Trace{Name: name, Families: slices.Sorted(slices.Values(zipfOrder))}

	share := make([]float64, len(t.Families))
	for rank, s := range arrivals.Zipf(len(zipfOrder), 1.001) {
		share[slices.Index(t.Families, zipfOrder[rank])] = s
		t.SLO = append(t.SLO, 300*time.Millisecond)
	}

	t.Arrivals = arrivals.NewUnit(seed, gaps, share, rate*span.Seconds()).At(rate, span, nil)
	return t
}

// madeFamily holds the parameters from which MakeZoo generates a family: ℓ of the lightest and the heaviest variant
// on a CPU, and the speed-up of GPUs.
type madeFamily struct {
	name           string
	light, heavy   float64 // ms at batch 1 on a CPU
	worst          float64 // accuracy of the lightest
	variants       int
	speedup, batch float64 // of a v100 over a CPU at the heaviest; share of ℓ(1) that does not grow with b
}

var madeFamilies = []madeFamily{
	{"bert", 20, 110, 0.90, 4, 4, 0.9}, {"densenet", 70, 190, 0.965, 4, 4, 0.3}, {"efficientnet", 28, 230, 0.915, 5, 5, 0.3},
	{"gpt2", 260, 750, 0.937, 2, 4, 0.9}, {"mobilenet", 4, 20, 0.85, 4, 1.2, 0.3}, {"resnest", 65, 550, 0.90, 4, 8, 0.3},
	{"resnet", 45, 270, 0.895, 5, 6, 0.3}, {"t5", 100, 770, 0.83, 3, 3, 0.9}, {"yolo", 37, 240, 0.70, 5, 9, 0.4},
}

// MakeZoo returns families with the names of the public data and profiles of our own, for runs and tests without that
// data: ℓ(b) = αb + β at sizes 1, 2, 4 and 8, from a few numbers per family.
func MakeZoo() *Zoo {
	z := &Zoo{Name: "made", Kinds: []string{"cpu", "1080ti", "v100"}}
	for _, m := range madeFamilies {
		f := Family{Name: m.name}
		for i := range m.variants {
			// Accuracy and latency grow from the lightest to the heaviest variant; accuracy grows ever more slowly.
			x := float64(i) / float64(m.variants-1)
			cpu := m.light * math.Pow(m.heavy/m.light, x)
			v := Variant{Name: fmt.Sprintf("%s-%d", m.name, i+1), Accuracy: 1 - (1-m.worst)*math.Pow(1-x, 1.5)}

			// A GPU speeds light variants up less than heavy ones; a CPU gains little from batches.
			fast := m.speedup * math.Pow(cpu/m.heavy, 0.4)
			for _, kind := range []struct{ one, fixed float64 }{{cpu, m.batch * 0.1}, {cpu / fast * 1.3, m.batch}, {cpu / fast, m.batch}} {
				v.Measured = append(v.Measured, linearLatency(kind.one, kind.fixed))
			}
			f.Variants = append(f.Variants, v)
		}
		z.Families = append(z.Families, f)
	}
	return z
}

// linearLatency returns ℓ with ℓ(1) = one ms, of which the share fixed does not grow with the size.
func linearLatency(one, fixed float64) map[int]time.Duration {
	out := make(map[int]time.Duration)
	for _, b := range []int{1, 2, 4, 8} {
		out[b] = time.Duration(one * (fixed + (1-fixed)*float64(b)) * 1e6)
	}
	return out
}
