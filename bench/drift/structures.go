package drift

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/figure"
	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
	"downbeat.dev/core/sim"
	"downbeat.dev/models"
)

// A structure of the application has one network for each of its three models (AdaInf §2.2). Of the detector and the
// activity model 81 structures have the whole -l network or one of its early exits, of the vehicle model any network:
// 3·3·9. Downbeat also has -s and -m of the other two, which are separate networks.

// network is a network that can answer for a model.
type network struct {
	name     string
	accuracy float64
	cost     float64 // MFLOP per input
	ofL      bool    // the -l network or an exit of it
	exit     bool
}

// structuresPublished is the number of the paper's structures.
const structuresPublished = 81

// structure is one network for each family.
type structure [3]network

var families = [3]string{"detector", "vehicle", "activity"}

// networksOf returns a family's networks with their accuracies in the repository.
func networksOf(family, dir string) (all []network, err error) {
	add := func(name string, cost float64, ofL, exit bool) error {
		found, err := repo.OpenModel([]string{dir}, name, repo.Options{})
		if err == nil {
			all = append(all, network{name, found[0].Accuracy, cost, ofL, exit})
		}
		return err
	}

	for _, r := range models.Recipes() {
		if r.Family != family {
			continue
		}
		if err := add(r.Name(), float64(r.Cost().FLOP)/1e6, r.Variant == "l", false); err != nil {
			return nil, err
		}

		// The cost of an exit is that of the layers up to its head, and of the head.
		net := r.Structure()
		for k := range net.Exits {
			if err := add(r.ExitName(k+1), float64(net.ExitNet(k+1).Cost().FLOP)/1e6, r.Variant == "l", true); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// structuresOf returns every choice of one network per family.
func structuresOf(dir string) (all []structure, err error) {
	all = []structure{{}}
	for i, family := range families {
		networks, err := networksOf(family, dir)
		if err != nil {
			return nil, err
		}

		var longer []structure
		for _, s := range all {
			for _, n := range networks {
				s[i] = n
				longer = append(longer, s)
			}
		}
		all = longer
	}
	return all, nil
}

// accuracy returns the mean of the three accuracies.
func (s structure) accuracy() float64 { return (s[0].accuracy + s[1].accuracy + s[2].accuracy) / 3 }
func (s structure) cost() float64     { return s[0].cost + s[1].cost + s[2].cost }
func (s structure) ofL() bool         { return s[0].ofL && s[1].ofL && s[2].ofL }
func (s structure) exits() bool       { return s[0].exit || s[1].exit || s[2].exit }

// counted reports whether the structure is one of 81.
func (s structure) counted() bool { return s[0].ofL && s[2].ofL }

// selectStructures returns the structures that are wanted.
func selectStructures(all []structure, wanted func(structure) bool) (some []structure) {
	for _, s := range all {
		if wanted(s) {
			some = append(some, s)
		}
	}
	return some
}

// countExits returns how many of the structures have an exit.
func countExits(all []structure) int { return len(selectStructures(all, structure.exits)) }

// frontOf returns the Pareto front of the list in accuracy and cost, the cheapest first.
func frontOf(all []structure) (front []structure) {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b structure) int {
		// Of equal cost the best comes first.
		if a.cost() != b.cost() {
			return int(math.Copysign(1, a.cost()-b.cost()))
		}
		return int(math.Copysign(1, b.accuracy()-a.accuracy()))
	})
	best := 0.0
	for _, s := range sorted {
		if s.accuracy() > best {
			best = s.accuracy()
			front = append(front, s)
		}
	}
	return front
}

// drawStructures draws the choices of figure 7.
func drawStructures(_ context.Context, in *Inputs) (*figure.Drawing, error) {
	all, err := structuresOf(in.Setting.Models)
	if err != nil {
		return nil, err
	}

	// Without -s and -m of the detector and the activity model the structures are the paper's number, and those of the
	// -l networks alone a part of these.
	counted, ofL := selectStructures(all, structure.counted), selectStructures(all, structure.ofL)
	front, frontCounted, frontL := frontOf(all), frontOf(counted), frontOf(ofL)

	d := &figure.Drawing{Header: []string{"detector", "vehicle", "activity", "accuracy", "mflop", "of_81", "of_l", "front", "front_of_81", "front_of_l"}}
	panel := chart.Panel{Title: "structures that no other one beats", XLabel: "MFLOP of one input of each model", YLabel: "mean accuracy", YMin: 0.8}
	for _, line := range []struct {
		name  string
		front []structure
	}{{"all variants", front}, {"the 81 structures", frontCounted}, {"-l and its exits", frontL}} {
		for _, s := range line.front {
			panel.Add(line.name, s.cost(), s.accuracy())
		}
	}

	for _, s := range all {
		d.Add(s[0].name, s[1].name, s[2].name, s.accuracy(), s.cost(), s.counted(), s.ofL(), slices.Contains(front, s), slices.Contains(frontCounted, s), slices.Contains(frontL, s))
	}

	d.Panels = []chart.Panel{panel}

	// Exits in structures on the front are useful.
	d.Claims = []figure.Claim{
		{What: "structures of the application", Published: fmt.Sprint(structuresPublished),
			Ours:    fmt.Sprintf("%d: three detectors, three activity networks and nine vehicle networks; %d by the -l networks and their exits, %d with all -s and -m", len(counted), len(ofL), len(all)),
			Verdict: figure.Beside,
			Why:     "the paper has an exit behind every third layer; 81 is no third power, so that its models have different numbers, such as 3·3·9. Here the nine are three networks with two exits each"},
		{What: "structures that no other one beats, of them with an exit", Published: "-",
			Ours:    fmt.Sprintf("of the %d: %d, %d; of all: %d, %d; of -l and its exits alone: %d, %d", len(counted), len(frontCounted), countExits(frontCounted), len(front), countExits(front), len(frontL), countExits(frontL)),
			Verdict: figure.NoNumber},
		{What: "Early-inc over Full-inc, Full-inc over Ekya", Published: "0 to 6, 0 to 4 points", Ours: "not run", Verdict: figure.Beside, Why: "the baseline trains networks without exits"},
	}
	return d, nil
}

// thresholds of the vehicle model; the detector and activity keep their whole -l networks.
var thresholds = []float64{0.80, 0.90, 0.95, 0.97, 0.975, 0.98, 0.985, 0.99, 0.993}

// drawThreshold draws figure 24: the cheapest network of the vehicle model that is as accurate as the threshold, and
// its finish rate.
func drawThreshold(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	all, err := structuresOf(in.Setting.Models)
	if err != nil {
		return nil, err
	}

	// The finish rate comes from virtual time, the accuracy from the repository.
	d := &figure.Drawing{Header: []string{"threshold", "choice", "vehicle", "accuracy", "mflop", "finish"}}
	accuracy := chart.Panel{Title: "accuracy of the vehicle model", XLabel: "A_m", XMin: 0.8, YLabel: "share right", YMin: 0.9}
	finish := chart.Panel{Title: "finish rate", XLabel: "A_m", XMin: 0.8, YLabel: "share of the requests"}

	for _, choice := range []string{"-l and its exits", "all variants"} {
		for _, least := range thresholds {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			s, ok := cheapest(all, least, choice == "all variants")
			if !ok {
				continue
			}
			share, err := serveStructure(in.Setting, s)
			if err != nil {
				return nil, err
			}
			accuracy.Add(choice, least, s[1].accuracy)
			finish.Add(choice, least, share)
			d.Add(least, choice, s[1].name, s[1].accuracy, s.cost(), share)
		}
	}

	d.Panels = []chart.Panel{accuracy, finish}

	up, down := rises(accuracy.Lines[0].Y), !rises(finish.Lines[0].Y)
	d.Claims = []figure.Claim{{What: "with A_m accuracy rises and the finish rate falls", Published: "no numbers", Ours: fmt.Sprintf("accuracy %.3f to %.3f, finish rate %.3f to %.3f", accuracy.Lines[0].Y[0], last(accuracy.Lines[0].Y),
		finish.Lines[0].Y[0], last(finish.Lines[0].Y)), Verdict: figure.Judge(up && down)}}
	return d, nil
}

func last(all []float64) float64 { return all[len(all)-1] }
func rises(all []float64) bool   { return last(all) > all[0] }

// cheapest returns the cheapest structure whose vehicle network has at least this accuracy.
func cheapest(all []structure, least float64, any bool) (best structure, ok bool) {
	for _, s := range all {
		fits := s[0].name == "detector-l" && s[2].name == "activity-l" && s[1].accuracy >= least && (any || s[1].ofL)
		if fits && (!ok || s.cost() < best.cost()) {
			best, ok = s, true
		}
	}
	return best, ok
}

// thresholdLoad is the load of figure 24, as a share of the GPUs' capacity with all networks whole.
const thresholdLoad = 1.02

// serveStructure returns the share of the requests that a structure answers in time. ℓ(b) of a network is
// proportional to its cost: the -l network of the vehicle model has the ℓ(b) of this package's models.
func serveStructure(s Setting, of structure) (float64, error) {
	whole := 0.0
	w := &sim.World{GPUs: s.GPUs}
	for i, n := range of {
		r, _ := models.Find(families[i] + "-l")
		unit, _ := models.Find("vehicle-l")
		scale := func(cost float64) float64 { return cost / (float64(unit.Cost().FLOP) / 1e6) }
		whole += scale(float64(r.Cost().FLOP)/1e6) * answerTime(batchMax).Seconds() / batchMax

		p, err := profile.Linear(time.Duration(alpha*scale(n.cost)), time.Duration(beta*scale(n.cost)), batchMax)
		if err != nil {
			return 0, err
		}
		w.Models = append(w.Models, sim.Model{Name: n.name, Profile: p, SLO: sim.Duration(slo)})
	}

	// Every frame asks each of the three models once.
	rate := 3 * thresholdLoad * float64(s.GPUs) / whole
	unit := arrivals.NewUnit(s.Seed, arrivals.Poisson, arrivals.Even(3), rate*servedSpan.Seconds()*1.01+100)
	w.Arrivals = unit.At(rate, servedSpan, nil)

	r := w.Run(sim.NewDownbeat(w))
	bad, total := 0, 0
	for m := range r.Total {
		bad, total = bad+r.Bad[m], total+r.Total[m]
	}
	return 1 - float64(bad)/float64(max(1, total)), nil
}
