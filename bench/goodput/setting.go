package goodput

import (
	"fmt"
	"math"
	"time"

	"downbeat.dev/core/profile"
	"downbeat.dev/core/sim"
)

// Setting is one workload of the paper on one cluster.
type Setting struct {
	Name      string
	Models    []profile.Entry
	Share     []float64 // of the rate, per model
	GPUs      int
	Gaps      sim.Gaps
	Published float64 // requests/s that Symphony reports, 0: not printed as a number
}

// Table 4 names these two profiles.
var (
	resNet50   = profile.Entry{Name: "ResNet50", Alpha: 1053 * time.Microsecond, Beta: 5072 * time.Microsecond}
	incepResV2 = profile.Entry{Name: "InceptionResNetV2", Alpha: 5090 * time.Microsecond, Beta: 18368 * time.Microsecond}
)

// copies returns n models with one profile and SLO.
func copies(e profile.Entry, n int, slo time.Duration) []profile.Entry {
	out := make([]profile.Entry, n)
	for i := range out {
		out[i] = e
		out[i].SLO = slo
		if n > 1 {
			out[i].Name = fmt.Sprintf("%s-%02d", e.Name, i)
		}
	}
	return out
}

func ratio(zoo []profile.Entry, keep func(float64) bool) []profile.Entry {
	var out []profile.Entry
	for _, e := range zoo {
		if keep(e.Ratio()) {
			out = append(out, e)
		}
	}
	return out
}

func even(name string, models []profile.Entry, gpus int, g sim.Gaps, published float64) Setting {
	return Setting{name, models, sim.Even(len(models)), gpus, g, published}
}

// Fig7SLOs are the latency SLOs of figure 7's rows, in ms.
var Fig7SLOs = []int{15, 20, 25, 30, 50, 100}

// Settings returns every setting.
func Settings() []Setting {
	ms := time.Millisecond
	out := []Setting{
		even("table4-resnet50", copies(resNet50, 1, 25*ms), 8, sim.Poisson, 5169),
		even("table4-inceptionresnet", copies(incepResV2, 1, 70*ms), 8, sim.Poisson, 907),
	}
	all := func(float64) bool { return true }
	gt2 := func(r float64) bool { return r > 2 }
	lt2 := func(r float64) bool { return r < 2 }
	for _, z := range []struct {
		name string
		zoo  []profile.Entry
	}{{"1080ti", profile.GTX1080Ti()}, {"a100", profile.A100()}} {
		out = append(out,
			even("fig6-"+z.name+"-all", ratio(z.zoo, all), 64, sim.Poisson, 0),
			even("fig6-"+z.name+"-gt2", ratio(z.zoo, gt2), 64, sim.Poisson, 0),
			even("fig6-"+z.name+"-lt2", ratio(z.zoo, lt2), 64, sim.Poisson, 0))
	}
	for _, gaps := range []struct {
		name string
		g    sim.Gaps
	}{{"poisson", sim.Poisson}, {"gamma", sim.Gaps{Shape: 0.05}}} {
		for _, pop := range []struct {
			name string
			s    float64
		}{{"even", 0}, {"zipf", 0.9}} {
			for _, slo := range Fig7SLOs {
				out = append(out, Setting{
					Name:   fmt.Sprintf("fig7-%s-%s-%dms", gaps.name, pop.name, slo),
					Models: copies(resNet50, 20, time.Duration(slo)*ms), Share: sim.Zipf(20, pop.s), GPUs: 32, Gaps: gaps.g,
				})
			}
		}
	}
	return out
}

// Capacity returns a rate in requests/s that no schedule exceeds by far: all GPUs always run the
// largest batch that fits the SLO.
func (s Setting) Capacity() float64 {
	need := 0.0 // GPU seconds per request
	for i, e := range s.Models {
		p, err := e.Profile()
		if err != nil {
			panic(err)
		}
		best := math.Inf(1)
		for b := 1; b <= p.Max(); b++ {
			best = min(best, p.Exec(b).Seconds()/float64(b))
		}
		need += s.Share[i] * best
	}
	return float64(s.GPUs) / need
}

// One returns a setting by its name.
func One(name string) (Setting, error) {
	for _, s := range Settings() {
		if s.Name == name {
			return s, nil
		}
	}
	return Setting{}, fmt.Errorf("setting %q: no such setting", name)
}
