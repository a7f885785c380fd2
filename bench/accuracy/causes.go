package accuracy

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"downbeat.dev/core/sim"
)

// Causes splits what a second's requests lost past the bound of that second. The bound is computed again with less
// time step by step, so the parts add up to the loss; a part may be negative.
type Causes struct {
	Second     int
	Drop       float64 // of the second's answers
	Violations float64 // share of its requests
	Bound      float64 // what the bound loses
	Idle       float64 // device time passed unused in this second
	Carried    float64 // its requests got less time than was used, since others' got it: those of seconds before and after
	Batches    float64 // their batches took more time than the cheapest ones
	Choice     float64 // other answers would have been more accurate in the same time
}

// work is device time by kind, in seconds.
type work struct {
	used  []float64 // in this second
	given []float64 // for the requests of this second: their shares of their batches
	least []float64 // what that would have been in the cheapest batches
	lost  []float64 // what each answer in time to a request of this second lost
}

// recordWork makes a world record its devices' time by second. Call it before Run.
func recordWork(w *sim.World, devices, seconds int) []work {
	all := make([]work, seconds)
	for i := range all {
		all[i] = work{used: make([]float64, devices), given: make([]float64, devices), least: make([]float64, devices)}
	}

	note := w.Answered
	w.Answered = func(gpu, model, variant int32, start, finish sim.Time, requests []int32) {
		note(gpu, model, variant, start, finish, requests)
		kind := w.Kind(gpu)
		for i := int(start / 1e9); i < seconds && sim.Time(i)*1e9 < finish; i++ {
			all[i].used[kind] += float64(min(finish, sim.Time(i+1)*1e9)-max(start, sim.Time(i)*1e9)) / 1e9
		}
		share, least := float64(finish-start)/1e9/float64(len(requests)), LeastCost(&w.Models[model], int(variant), kind)
		for _, r := range requests {
			x := &all[w.Arrivals[r].At/1e9]
			x.given[kind] += share
			x.least[kind] += least
			if w.Deadline(r) >= finish {
				x.lost = append(x.lost, 1-w.Models[model].Variants[variant].Accuracy)
			}
		}
	}
	return all
}

// WorstCauses returns the causes of the seconds of a result that lose most past their bound, the worst first.
func (c *Comparison) WorstCauses(ctx context.Context, r *Result, most int) (out []Causes, err error) {
	w, err := c.Setting.World()
	if err != nil {
		return nil, err
	}

	drops := r.Measured.Drops(1)
	past := func(i int) float64 { return drops[i] - (1 - c.Bounds.Seconds[i]) }
	var order []int
	for i := range drops {
		order = append(order, i)
	}

	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(past(b), past(a)) })

	for _, i := range order[:min(most, len(order))] {
		x, err := c.causesOf(ctx, w, r.Measured, i)
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return out, nil
}

// causesOf splits the loss of one second.
func (c *Comparison) causesOf(ctx context.Context, w *sim.World, m *Measured, second int) (Causes, error) {
	demand := make([]float64, len(w.Models))
	for f := range demand {
		demand[f] = float64(m.BySecond[f][second].Arrived)
	}

	x := &m.work[second]
	idleless := make([]float64, len(x.used))
	for kind, n := range c.Setting.counts() {
		idleless[kind] = min(x.used[kind], float64(n))
	}

	// Each step leaves less of the time.
	out := Causes{Second: second, Drop: m.Seconds[second].Drop(), Violations: m.Seconds[second].Violations(), Bound: 1 - c.Bounds.Seconds[second]}
	before := out.Bound
	for _, step := range []struct {
		part *float64
		time []float64
	}{{&out.Idle, idleless}, {&out.Carried, x.given}, {&out.Batches, x.least}} {
		accuracy, _, err := Bound(ctx, w.Models, step.time, demand)
		if err != nil {
			return Causes{}, err
		}
		*step.part = 1 - accuracy - before
		before = 1 - accuracy
	}

	out.Choice = out.Drop - before
	return out, nil
}

// dropWithout returns the largest drop over a second if of each second the least accurate answers are left out, as many
// as another policy violates requests of it. What a policy does not answer in time lowers no accuracy.
func (m *Measured) dropWithout(other *Measured) (worst float64) {
	for i := range m.work {
		lost := slices.Sorted(slices.Values(m.work[i].lost))
		lost = lost[:max(0, len(lost)-(other.Seconds[i].Arrived-other.Seconds[i].Served))]
		sum := 0.0
		for _, x := range lost {
			sum += x
		}
		worst = max(worst, sum/float64(max(1, len(lost))))
	}
	return worst
}

// WriteCauses prints the causes of the worst seconds of a run, and their mean; all are the runs beside it.
func WriteCauses(w io.Writer, r *Result, worst []Causes, all []Result) error {
	fmt.Fprintf(w, "%s, %s, %s, SLO %gx (percent)\n", r.Trace, r.Data, r.Policy, r.SLOScale)
	for i := range all {
		if x := &all[i]; x.ViolationRatio > r.ViolationRatio {
			fmt.Fprintf(w, "largest drop %.2f; %.2f without as many answers of each second as %s violates, whose largest is %.2f\n",
				100*r.LargestDrop1s, 100*r.Measured.dropWithout(x.Measured), x.Policy, 100*x.LargestDrop1s)
		}
	}

	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "second\tdrop\tviolations\tbound\tidle\tcarried\tbatches\tchoice\t")

	var mean Causes
	line := func(name any, c *Causes, n float64) {
		fmt.Fprintf(t, "%v\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t\n", name, 100*c.Drop/n, 100*c.Violations/n, 100*c.Bound/n, 100*c.Idle/n, 100*c.Carried/n, 100*c.Batches/n, 100*c.Choice/n)
	}

	for i := range worst {
		c := &worst[i]
		line(c.Second, c, 1)
		mean.Drop += c.Drop
		mean.Violations += c.Violations
		mean.Bound += c.Bound
		mean.Idle += c.Idle
		mean.Carried += c.Carried
		mean.Batches += c.Batches
		mean.Choice += c.Choice
	}

	line("mean", &mean, float64(len(worst)))
	return t.Flush()
}
