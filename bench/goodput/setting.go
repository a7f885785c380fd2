package goodput

import (
	"fmt"
	"math"
	"strings"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sim"
)

// Setting is one workload of the paper on one cluster.
type Setting struct {
	Name   string
	Models []profile.Entry
	Share  []float64 // of the rate, per model
	GPUs   int
	Gaps   arrivals.Gaps
	Ctrl   sim.Duration // network delay of this setting, added to that of Options
	// Published are the requests/s printed in Symphony's paper, by the name of its system.
	Published map[string]float64
	Loads     []float64 // also run at these multiples of the policy's own goodput
	Detail    bool      // also report sizes of batches and queueing delays
	// SubClusters is the number of equal sub-clusters of GPUs, whose models plan.Assign chooses; 0: all GPUs serve
	// all models.
	SubClusters int
}

// Table 4 names these two profiles.
var (
	resNet50   = profile.Entry{Name: "ResNet50", Alpha: 1053 * time.Microsecond, Beta: 5072 * time.Microsecond}
	incepResV2 = profile.Entry{Name: "InceptionResNetV2", Alpha: 5090 * time.Microsecond, Beta: 18368 * time.Microsecond}
)

// copyModels returns n models with one profile and SLO.
func copyModels(e profile.Entry, n int, slo time.Duration) []profile.Entry {
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

func keepRatio(zoo []profile.Entry, keep func(float64) bool) []profile.Entry {
	var out []profile.Entry
	for _, e := range zoo {
		if keep(e.Ratio()) {
			out = append(out, e)
		}
	}
	return out
}

func evenSetting(name string, models []profile.Entry, gpus int, g arrivals.Gaps) Setting {
	return Setting{Name: name, Models: models, Share: arrivals.Even(len(models)), GPUs: gpus, Gaps: g}
}

// Settings returns every setting, in the order of the paper's tables and figures.
func Settings() []Setting {
	var out []Setting
	for _, part := range [][]Setting{table4(), fig4(), fig6(), fig7(), fig10(), fig11(), fig13()} {
		out = append(out, part...)
	}
	return out
}

const ms = time.Millisecond

func table4() []Setting {
	a := evenSetting("table4-resnet50", copyModels(resNet50, 1, 25*ms), 8, arrivals.Poisson)
	a.Published = map[string]float64{"symphony": 5169, "clockwork": 2036, "nexus": 3965}
	b := evenSetting("table4-inceptionresnet", copyModels(incepResV2, 1, 70*ms), 8, arrivals.Poisson)
	b.Published = map[string]float64{"symphony": 907, "clockwork": 482, "nexus": 590}
	a.Detail, b.Detail = true, true
	return []Setting{a, b}
}

// fig4 takes from table 3 the models of figure 4: (a) the mixed zoo, (b) DenseNet121, which batches strongly, (c)
// BERT, which does not; 16 models and two GPUs per model, bursty to Poisson.
func fig4() []Setting {
	var out []Setting
	shapes := []float64{0.1, 0.3, 1}
	zoo := profile.GTX1080Ti()
	for _, k := range shapes {
		out = append(out, evenSetting(fmt.Sprintf("fig4-mixed-gamma%g", k), zoo, 2*len(zoo), arrivals.Gaps{Shape: k}))
	}

	for _, e := range zoo {
		if e.Name != "DenseNet121" && e.Name != "BERT" {
			continue
		}
		for _, slo := range []int{30, 50} {
			for _, k := range shapes {
				out = append(out, evenSetting(fmt.Sprintf("fig4-%s-%dms-gamma%g", strings.ToLower(e.Name), slo, k),
					copyModels(e, 16, time.Duration(slo)*ms), 32, arrivals.Gaps{Shape: k}))
			}
		}
	}
	return out
}

func fig6() []Setting {
	var out []Setting
	for _, z := range []struct {
		name string
		zoo  []profile.Entry
	}{{"1080ti", profile.GTX1080Ti()}, {"a100", profile.A100()}} {
		out = append(out,
			evenSetting("fig6-"+z.name+"-all", z.zoo, 64, arrivals.Poisson),
			evenSetting("fig6-"+z.name+"-gt2", keepRatio(z.zoo, func(r float64) bool { return r > 2 }), 64, arrivals.Poisson),
			evenSetting("fig6-"+z.name+"-lt2", keepRatio(z.zoo, func(r float64) bool { return r < 2 }), 64, arrivals.Poisson))
	}
	return out
}

// Fig7SLOs are the latency SLOs of figure 7's rows, in ms.
var Fig7SLOs = []int{15, 20, 25, 30, 50, 100}

func fig7() []Setting {
	// The figure's four curves: Poisson or bursty arrivals, even or Zipf popularity.
	var out []Setting
	for _, gaps := range []struct {
		name string
		g    arrivals.Gaps
	}{{"poisson", arrivals.Poisson}, {"gamma", arrivals.Gaps{Shape: 0.05}}} {
		for _, pop := range []struct {
			name string
			s    float64
		}{{"even", 0}, {"zipf", 0.9}} {
			for _, slo := range Fig7SLOs {
				out = append(out, Setting{
					Name:   fmt.Sprintf("fig7-%s-%s-%dms", gaps.name, pop.name, slo),
					Models: copyModels(resNet50, 20, time.Duration(slo)*ms), Share: arrivals.Zipf(20, pop.s), GPUs: 32, Gaps: gaps.g,
				})
			}
		}
	}
	return out
}

// fig10 is the setting of §5.3: ten ResNet models, 100 ms, 24 GPUs, above and below the highest load.
func fig10() []Setting {
	a := evenSetting("fig10-stability", copyModels(resNet50, 10, 100*ms), 24, arrivals.Poisson)
	b := a
	b.Name = "fig10-utilization"
	a.Loads = []float64{0.9, 1, 1.1, 1.25, 1.5, 1.75, 2}
	b.Loads = []float64{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}
	return []Setting{a, b}
}

func fig11() []Setting {
	var out []Setting
	for _, n := range []int{8, 16, 32, 64, 128} {
		out = append(out, evenSetting(fmt.Sprintf("fig11-gpus-%d", n), copyModels(resNet50, 20, 100*ms), n, arrivals.Poisson))
	}
	return out
}

// fig13 delays every batch by a fixed network latency, in the range of RDMA and of TCP's tail.
func fig13() []Setting {
	var out []Setting
	for _, slo := range []int{20, 25, 50, 100} {
		for _, us := range []int{0, 50, 100, 500, 1000, 2000, 5000} {
			s := evenSetting(fmt.Sprintf("fig13-%dms-%dus", slo, us), copyModels(resNet50, 20, time.Duration(slo)*ms), 32, arrivals.Poisson)
			s.Ctrl = sim.Duration(us) * 1000
			out = append(out, s)
		}
	}
	return out
}

// Capacity returns a rate in requests/s that no schedule exceeds by far: all GPUs always run the largest batch that
// fits the SLO.
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
	s, err := Select(name)
	if err == nil && len(s) != 1 {
		err = fmt.Errorf("setting %q: names %d settings, want one", name, len(s))
	}
	if err != nil {
		return Setting{}, err
	}
	return s[0], nil
}

// Select returns the settings in a comma-separated list: "all", a setting's name, or the part of names before a dash
// ("fig7", "fig7-gamma"). fig8 and fig9 are the details of table 4's settings. "all" omits the grid, which takes
// hours, and the parted clusters.
func Select(list string) ([]Setting, error) {
	papers := Settings()
	every := append(append(papers, gridSettings()...), partedSettings()...)

	// Settings are returned in the order of the paper, each once, regardless of the list's order.
	taken := make([]bool, len(every))
	for _, name := range strings.Split(list, ",") {
		name = strings.TrimSpace(name)
		as := name

		if name == "fig8" || name == "fig9" {
			as = "table4"
		}

		hit := false
		for i, s := range every {
			if name == "all" && i < len(papers) || s.Name == as || strings.HasPrefix(s.Name, as+"-") {
				hit, taken[i] = true, true
			}
		}
		if !hit {
			return nil, fmt.Errorf("setting %q: want all, or a name or its first parts, of %s", name, strings.Join(append(familyNames(papers), "grid-…", "parted-…"), ", "))
		}
	}

	var out []Setting
	for i, s := range every {
		if taken[i] {
			out = append(out, s)
		}
	}
	return out, nil
}

// familyNames lists the settings, with the last part omitted in long groups.
func familyNames(every []Setting) []string {
	var out []string
	seen := make(map[string]bool)
	for _, s := range every {
		name := s.Name
		if !strings.HasPrefix(name, "table4") && !strings.HasPrefix(name, "fig6") && !strings.HasPrefix(name, "fig10") {
			name = name[:strings.LastIndex(name, "-")] + "-…"
		}
		if !seen[name] {
			seen[name] = true
			out = append(out, name)
		}
	}
	return out
}
