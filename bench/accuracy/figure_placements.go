package accuracy

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/family"
)

// placementsFamily is the family of figure 1, and placementsDevices are its five devices; the paper states only "5
// devices".
const placementsFamily = "efficientnet"

var placementsDevices = []string{"cpu", "cpu", "1080ti", "1080ti", "v100"}

// drawPlacements is figure 1: (a) throughput and accuracy of each variant on one device of each kind at batch 1, (b)
// every placement of the variants on five devices at full load.
func drawPlacements(ctx context.Context, in *Inputs) (*Drawing, error) {
	d := &Drawing{Header: []string{"part", "data", "devices", "variants", "throughput_rps", "accuracy", "pareto", "published"}}
	for _, s := range in.byZoo() {
		i := slices.IndexFunc(s.Zoo.Families, func(f family.Family) bool { return f.Name == placementsFamily })
		if i < 0 {
			return nil, fmt.Errorf("no family %s in the profiles", placementsFamily)
		}
		f := &s.Zoo.Families[i]

		single := chart.Panel{Title: "1a, " + s.Zoo.Name, XLabel: "requests/s at batch 1", YLabel: "accuracy", YMin: 0.9, YMax: 1}
		for kind, name := range s.Zoo.Kinds {
			d.addVariants(s.Zoo, f, kind, name, &single)
		}

		all, err := placementPoints(s.Zoo, f)
		if err != nil {
			return nil, err
		}

		d.Panels = append(d.Panels, single, d.addPlacements(s.Zoo.Name, f, all))
	}
	return d, nil
}

// addVariants adds the variants on one kind, and the spread between the first and the last.
func (d *Drawing) addVariants(zoo *family.Zoo, f *family.Family, kind int, name string, p *chart.Panel) {
	least, most, worst := 0.0, 0.0, 1.0
	for _, v := range f.Variants {
		l, ok := v.Measured[kind][1]
		if !ok {
			continue
		}

		// At batch 1 a device answers one request per latency.
		rate := 1 / l.Seconds()
		d.add("a", zoo.Name, name, v.Name, rate, v.Accuracy, "", "")
		p.Add(name, rate, v.Accuracy)

		if least == 0 || rate < least {
			least = rate
		}
		most, worst = max(most, rate), min(worst, v.Accuracy)
	}

	published := ""
	if name == "1080ti" {
		published = "3.3 and 0.08"
	}
	d.add("a spread", zoo.Name, name, "throughput factor and accuracy difference", most/least, 1-worst, "", published)
}

// placement assigns a variant to each of the five devices.
type placement struct {
	variants       [5]int
	rate, accuracy float64
	pareto         bool
}

// placementPoints returns every placement with its throughput and accuracy, and marks the Pareto front.
func placementPoints(zoo *family.Zoo, f *family.Family) ([]placement, error) {
	var kinds [5]int
	for i, name := range placementsDevices {
		if kinds[i] = slices.Index(zoo.Kinds, name); kinds[i] < 0 {
			return nil, fmt.Errorf("no kind %s in the profiles", name)
		}
	}

	var all []placement
	n := len(f.Variants)

	// A placement's number in base n has one digit, the variant, per device.
	for code := range n * n * n * n * n {
		var p placement
		for i := range p.variants {
			v := code % n
			code /= n
			p.variants[i] = v
			if l, ok := f.Variants[v].Measured[kinds[i]][1]; ok {
				p.rate += 1 / l.Seconds()
				p.accuracy += f.Variants[v].Accuracy / l.Seconds()
			}
		}

		// Accuracy is the mean over requests, so a fast device has more weight than a slow one.
		p.accuracy /= p.rate
		all = append(all, p)
	}

	slices.SortFunc(all, func(a, b placement) int {
		return cmp.Or(cmp.Compare(b.rate, a.rate), cmp.Compare(b.accuracy, a.accuracy))
	})

	// In order of falling throughput, a placement is on the front if it is more accurate than all before it.
	best := 0.0
	for i := range all {
		all[i].pareto = all[i].accuracy > best
		best = max(best, all[i].accuracy)
	}
	return all, nil
}

// addPlacements adds all placements and returns their panel.
func (d *Drawing) addPlacements(data string, f *family.Family, all []placement) chart.Panel {
	p := chart.Panel{Title: fmt.Sprintf("1b, %s: %d placements", data, len(all)), XLabel: "requests/s", YLabel: "accuracy", YMin: 0.9, YMax: 1}
	for _, x := range all {
		var names []string
		for _, v := range x.variants {
			names = append(names, f.Variants[v].Name)
		}

		if !x.pareto {
			names = nil // thousands of names would be most of the file
		}

		d.add("b", data, "2 cpu 2 1080ti v100", strings.Join(names, " "), x.rate, x.accuracy, x.pareto, "")
		p.Add("placements", x.rate, x.accuracy)
		if x.pareto {
			p.Add("Pareto front", x.rate, x.accuracy)
		}
	}

	for i := range p.Lines {
		p.Lines[i].Dots = p.Lines[i].Name == "placements"
	}
	slices.SortFunc(p.Lines, func(a, b chart.Line) int { return cmp.Compare(a.Name, b.Name) })
	return p
}
