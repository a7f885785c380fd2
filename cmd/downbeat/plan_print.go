//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/plan"
)

// printStatus prints the latest plan and the models on each GPU.
func (f *planFlags) printStatus(out io.Writer, text []byte) error {
	if f.format == "json" {
		_, err := out.Write(append(text, '\n'))
		return err
	}
	var s engine.PlanStatus
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("%s: %s: %w", f.fs.Name(), f.url, err)
	}
	return printPlanStatus(out, &s)
}

func printPlanStatus(out io.Writer, s *engine.PlanStatus) error {
	if s.Number == 0 {
		fmt.Fprintln(out, "No plan was applied since the scheduler started.")
	} else {
		fmt.Fprintf(out, "Plan %d is %s: %s taken, %d left\n", s.Number, s.State, countNoun(s.Taken, "step", "steps"), s.Left)
	}
	for _, x := range s.UnderWay {
		fmt.Fprintf(out, "  under way: %s %s on %s\n", x.Act, x.Model, x.GPU)
	}
	for _, x := range s.LeftOut {
		fmt.Fprintf(out, "  left out: %s on %s: %s\n", x.Model, x.GPU, x.Why)
	}
	if len(s.NotServed) > 0 {
		fmt.Fprintf(out, "  not served for a while, since no GPU has room for both: %s\n", strings.Join(s.NotServed, ", "))
	}

	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GPU\tSUB-CLUSTER\tMEMORY\tUSED\tMODELS")
	for _, g := range s.GPUs {
		var models []string
		for _, m := range g.Models {
			if m.State != "offered" {
				m.Model += " (" + m.State + ")"
			}
			models = append(models, m.Model)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", g.GPU, g.SubCluster, formatMemory(g.Memory), formatMemory(g.Used), strings.Join(models, " "))
	}
	return w.Flush()
}

// printProposal prints what a plan would change, and its steps if steps is true.
func printProposal(out io.Writer, p *engine.ProposedPlan, steps bool) error {
	fmt.Fprintf(out, "Plan %d: %s\n", p.Number, summarizeSteps(p))
	fmt.Fprintf(out, "  %s, %s, imbalance of demand %.4f, of memory %.4f\n",
		countNoun(p.SubClusters, "sub-cluster", "sub-clusters"), countNoun(p.Moved, "model moves", "models move"), p.ImbalanceDemand, p.ImbalanceMemory)
	if len(p.NotServed) > 0 {
		fmt.Fprintf(out, "  not served for a while, since no GPU has room for both: %s\n", strings.Join(p.NotServed, ", "))
	}

	// The assignment first: it is what the steps are for.
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GPUS\tDEMAND\tMODELS")
	for _, c := range p.Assignment {
		fmt.Fprintf(w, "%s\t%.2f\t%s\n", nameGPUs(c.GPUs), c.Demand, strings.Join(c.Models, " "))
	}
	if err := w.Flush(); err != nil || len(p.Steps) == 0 {
		return err
	}

	if !steps {
		_, err := fmt.Fprintf(out, "-steps lists the %s.\n", countNoun(len(p.Steps), "step", "steps"))
		return err
	}
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STEP\tACT\tMODEL\tGPU")
	for _, s := range p.Steps {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", s.Number, s.Act, s.Model, s.GPU)
	}
	return w.Flush()
}

// summarizeSteps says how many loads, unloads, offers and withdrawals a plan takes, and how long its loads last.
func summarizeSteps(p *engine.ProposedPlan) string {
	if len(p.Steps) == 0 {
		return "no step: every model is where the plan puts it"
	}
	counts, gpus := map[string]int{}, map[string]bool{}
	for _, s := range p.Steps {
		counts[s.Act]++
		gpus[s.GPU] = true
	}

	// A warm-up goes with its load.
	var parts []string
	for _, x := range []struct {
		kind      plan.StepKind
		one, many string
	}{{plan.StepLoad, "load", "loads"}, {plan.StepUnload, "unload", "unloads"}, {plan.StepOffer, "offer", "offers"}, {plan.StepWithdraw, "withdrawal", "withdrawals"}} {
		if n := counts[x.kind.String()]; n > 0 {
			parts = append(parts, countNoun(n, x.one, x.many))
		}
	}
	text := fmt.Sprintf("%s on %s", strings.Join(parts, ", "), countNoun(len(gpus), "GPU", "GPUs"))
	if p.LoadSeconds > 0 {
		text += fmt.Sprintf("; loads take about %.1f s", p.LoadSeconds)
	}
	return text
}

// countNoun returns a number with the noun in the form that fits it.
func countNoun(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// nameGPUs names the GPUs of a sub-cluster: of many the first and the last.
func nameGPUs(all []string) string {
	if len(all) <= 4 {
		return strings.Join(all, " ")
	}
	return fmt.Sprintf("%s … %s (%d)", all[0], all[len(all)-1], len(all))
}
