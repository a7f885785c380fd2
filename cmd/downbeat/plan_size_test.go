package main

import (
	"strings"
	"testing"
	"time"
)

// TestPlanSizeReadsItsFlags: what is asked becomes services and kinds; bad lists name the flag and the item.
func TestPlanSizeReadsItsFlags(t *testing.T) {
	f := sizeFlags{rates: "ResNet50=3000,f=100", slos: "f=60ms", arrivals: "gamma:0.3", format: "table", bad: 1, kinds: "a100", prices: "a100=2.5",
		families: []string{"f=VGG16:0.71+VGG19:0.72"}}
	f.o.GPUsMax, f.o.Seeds, f.o.Span = 10, 1, time.Second
	services, kinds, err := f.load()
	if err != nil {
		t.Fatal(err)
	}
	if len(services) != 2 || services[0].Rate != 3000 || services[0].SLO != 20*time.Millisecond || len(services[1].Variants) != 2 || services[1].Variants[1].Accuracy != 0.72 {
		t.Errorf("%+v", services)
	}
	if len(kinds) != 1 || kinds[0].Price != 2.5 || f.o.Gaps.Shape != 0.3 || f.o.BadMax != 0.01 {
		t.Errorf("%+v %+v", kinds, f.o)
	}

	for want, spoil := range map[string]func(*sizeFlags){
		"-rate is missing":       func(f *sizeFlags) { f.rates = "" },
		`-rate "ResNet50"`:       func(f *sizeFlags) { f.rates = "ResNet50" },
		"-rate ResNet50=fast":    func(f *sizeFlags) { f.rates = "ResNet50=fast" },
		"appears twice":          func(f *sizeFlags) { f.rates = "a=1,a=2" },
		"-slo: nobody":           func(f *sizeFlags) { f.slos = "nobody=1s" },
		"-slo f=soon":            func(f *sizeFlags) { f.slos = "f=soon" },
		"-family f: \"VGG16\"":   func(f *sizeFlags) { f.families = []string{"f=VGG16"} },
		"-family: g":             func(f *sizeFlags) { f.families = []string{"g=VGG16:0.5"} },
		"-price t4=1":            func(f *sizeFlags) { f.prices = "t4=1" },
		"-arrivals \"bursts\"":   func(f *sizeFlags) { f.arrivals = "bursts" },
		"-o yaml":                func(f *sizeFlags) { f.format = "yaml" },
		"bad share 1.5: want":    func(f *sizeFlags) { f.bad = 150 },
		`-profiles "mine.csv": `: func(f *sizeFlags) { f.profiles = "mine.csv" },
	} {
		g := f
		spoil(&g)
		if _, _, err := g.load(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
}
