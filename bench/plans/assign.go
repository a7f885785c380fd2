package plans

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"text/tabwriter"
	"time"

	"downbeat.dev/bench/solver"
	"downbeat.dev/core/plan"
)

// AssignRow is the result of one solver on one assignment problem.
type AssignRow struct {
	Models          int     `json:"models"`
	Parts           int     `json:"parts"`
	Seed            uint64  `json:"seed"`
	Drifted         bool    `json:"drifted"` // the following epoch, with 5 % of the load time allowed to move
	Solver          string  `json:"solver"`
	Seconds         float64 `json:"seconds"`
	ImbalanceDemand float64 `json:"imbalance_demand"`
	ImbalanceMemory float64 `json:"imbalance_memory"`
	Objective       float64 `json:"objective"` // the paper's ΔR/R̄ + ΔS/S̄
	Bound           float64 `json:"bound"`     // HiGHS's: no assignment has a lower objective; 0: unknown
	Moved           int     `json:"moved"`
	MovedShare      float64 `json:"moved_share"`
	Feasible        bool    `json:"feasible"`
}

// AssignOptions are the options of RunAssign.
type AssignOptions struct {
	Sizes   [][2]int // models and parts
	Seeds   int
	Solvers []string // local, random, highs
	Limit   time.Duration
	Drift   bool // also plan the following epoch, for local and highs
}

// DefaultAssignOptions are the sizes of the figures and of the project's targets.
func DefaultAssignOptions() AssignOptions {
	return AssignOptions{Sizes: [][2]int{{12, 3}, {20, 3}, {60, 3}, {400, 4}, {800, 20}, {10000, 100}}, Seeds: 3,
		Solvers: []string{"local", "random", "highs"}, Limit: 10 * time.Second, Drift: true}
}

// Validate returns an error for invalid options.
func (o *AssignOptions) Validate() error {
	for _, s := range o.Solvers {
		if s != "local" && s != "random" && s != "highs" {
			return fmt.Errorf("solver %q: want local, random or highs", s)
		}
	}
	for _, s := range o.Sizes {
		if s[0] < 1 || s[0] > 100_000 || s[1] < 1 || s[1] > 10_000 {
			return fmt.Errorf("%d models in %d parts: want 1 to 100000 in 1 to 10000", s[0], s[1])
		}
	}
	if o.Seeds < 1 || o.Seeds > 1000 || o.Limit <= 0 || o.Limit > time.Hour || len(o.Sizes) == 0 || len(o.Solvers) == 0 {
		return fmt.Errorf("%d seeds, limit %v, %d sizes, %d solvers: want 1 to 1000 seeds, a limit up to 1h, and some of each", o.Seeds, o.Limit, len(o.Sizes), len(o.Solvers))
	}
	return nil
}

// exactMost is the number of binaries above which HiGHS finds nothing within a minute.
const exactMost = 2000

// RunAssign assigns random models to parts with each solver. It fails if an assignment violates plan.CheckAssignment.
func RunAssign(ctx context.Context, o AssignOptions, progress func(AssignRow)) error {
	for _, size := range o.Sizes {
		for seed := range uint64(o.Seeds) {
			p := PartitionInstance(size[0], size[1], seed)
			if err := runSolvers(ctx, p, AssignRow{Models: size[0], Parts: size[1], Seed: seed}, o, progress); err != nil {
				return err
			}

			// All solvers start the next epoch from the same homes.
			if a, err := plan.Assign(p); err == nil && o.Drift {
				later := Drift(p, a, 0.3, 0.05, seed)
				if err := runSolvers(ctx, later, AssignRow{Models: size[0], Parts: size[1], Seed: seed, Drifted: true}, o, progress); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func runSolvers(ctx context.Context, p plan.AssignmentProblem, row AssignRow, o AssignOptions, progress func(AssignRow)) error {
	for _, name := range o.Solvers {
		if name == "highs" && row.Models*row.Parts > exactMost || name == "random" && row.Drifted {
			continue
		}

		row.Solver = name
		begun := time.Now()
		home, bound, err := solveBy(ctx, name, p, o.Limit)
		row.Seconds = time.Since(begun).Seconds()
		var infeasible *plan.InfeasibleError
		if err != nil && !errors.As(err, &infeasible) {
			return err
		}

		// The row is reused for the next solver, so set every field again.
		row.Feasible = home != nil
		row.Bound = bound
		row.ImbalanceDemand, row.ImbalanceMemory, row.Objective, row.Moved, row.MovedShare = 0, 0, 0, 0, 0
		if row.Feasible {
			if err := row.describeHomes(p, home); err != nil {
				return fmt.Errorf("%d models in %d parts, seed %d, %s: %w", row.Models, row.Parts, row.Seed, name, err)
			}
		}
		progress(row)
	}
	return nil
}

func solveBy(ctx context.Context, name string, p plan.AssignmentProblem, limit time.Duration) (home []int32, bound float64, err error) {
	switch name {
	case "local":
		a, err := plan.Assign(p)
		return a.Home, 0, err
	case "random":
		return RandomAssignment(ctx, p, limit), 0, ctx.Err()
	}

	var s solver.Solution
	home, s, err = ExactAssignment(ctx, p, nil, limit)
	return home, s.Bound, err
}

// describeHomes computes the row's measures from the homes alone, and checks the homes.
func (r *AssignRow) describeHomes(p plan.AssignmentProblem, home []int32) error {
	// Compute from the homes alone, so that every solver is measured in the same way.
	demand, static := make([]float64, len(p.SubClusters)), make([]float64, len(p.SubClusters))
	present, left := 0.0, 0.0
	for i, s := range p.Services {
		demand[home[i]] += s.Demand
		static[home[i]] += float64(s.Static)
		if s.Home != plan.Nowhere {
			present += s.Load.Seconds()
			if s.Home != int(home[i]) {
				r.Moved++
				left += s.Load.Seconds()
			}
		}
	}

	if left > 0 {
		r.MovedShare = left / present
	}

	r.ImbalanceDemand, r.ImbalanceMemory = imbalance(demand), imbalance(static)
	d, s := Deviations(p, home)
	r.Objective = d + s
	return plan.CheckAssignment(p, plan.Assignment{Home: home, Moved: r.Moved, MovedShare: r.MovedShare, ImbalanceDemand: r.ImbalanceDemand, ImbalanceMemory: r.ImbalanceMemory})
}

// imbalance returns (max − min)/average.
func imbalance(parts []float64) float64 {
	least, most, sum := parts[0], parts[0], 0.0
	for _, x := range parts {
		least, most, sum = min(least, x), max(most, x), sum+x
	}
	if sum == 0 {
		return 0
	}
	return (most - least) / sum * float64(len(parts))
}

// RandomAssignment is the paper's baseline (§A.2): random partitions until the time is up. It returns the best one
// that meets all constraints, or nil.
func RandomAssignment(ctx context.Context, p plan.AssignmentProblem, limit time.Duration) []int32 {
	rng := rand.New(rand.NewPCG(1, 1))
	end := time.Now().Add(limit)
	var best []int32
	bestObjective := 0.0
	home := make([]int32, len(p.Services))

	// Check the constraints only of a partition that would be the best so far: checking takes most of the time.
	for ctx.Err() == nil && time.Now().Before(end) {
		for i := range home {
			home[i] = int32(rng.IntN(len(p.SubClusters)))
		}
		d, s := Deviations(p, home)
		if best != nil && d+s >= bestObjective || !fitsMemory(p, home) {
			continue
		}
		best, bestObjective = append(best[:0], home...), d+s
	}
	return best
}

func fitsMemory(p plan.AssignmentProblem, home []int32) bool {
	// Static memory adds up. Of dynamic memory, a GPU holds the largest model's, since one batch runs at a time.
	static, dynamic := make([]int64, len(p.SubClusters)), make([]int64, len(p.SubClusters))
	for i, s := range p.Services {
		static[home[i]] += s.Static
		dynamic[home[i]] = max(dynamic[home[i]], s.Dynamic)
	}
	for j, c := range p.SubClusters {
		if static[j]+dynamic[j] > c.Memory {
			return false
		}
	}
	return true
}

// WriteAssignTable prints rows for people.
func WriteAssignTable(w io.Writer, rows []AssignRow) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "models\tparts\tseed\tepoch\tsolver\tseconds\timbalance of demand\tof memory\tobjective\tbound\tmoved\tshare\t")
	for _, r := range rows {
		epoch := "first"
		if r.Drifted {
			epoch = "drifted"
		}
		if !r.Feasible {
			fmt.Fprintf(t, "%d\t%d\t%d\t%s\t%s\t%.3f\tnothing feasible found\t\t\t\t\t\t\n", r.Models, r.Parts, r.Seed, epoch, r.Solver, r.Seconds)
			continue
		}
		fmt.Fprintf(t, "%d\t%d\t%d\t%s\t%s\t%.3f\t%.6f\t%.6f\t%.6f\t%.6f\t%d\t%.3f\t\n", r.Models, r.Parts, r.Seed, epoch, r.Solver, r.Seconds,
			r.ImbalanceDemand, r.ImbalanceMemory, r.Objective, r.Bound, r.Moved, r.MovedShare)
	}
	return t.Flush()
}

// WriteAssignJSON writes each row as one object per line.
func WriteAssignJSON(w io.Writer, rows []AssignRow) error {
	e := json.NewEncoder(w)
	for _, r := range rows {
		if err := e.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// ParseSizes parses sizes such as "800x20,400x4".
func ParseSizes(text string) ([][2]int, error) {
	var out [][2]int
	for part := range strings.SplitSeq(text, ",") {
		var size [2]int
		if n, err := fmt.Sscanf(part, "%dx%d", &size[0], &size[1]); n != 2 || err != nil {
			return nil, fmt.Errorf("size %q: want MODELSxPARTS, such as 800x20", part)
		}
		out = append(out, size)
	}
	return out, nil
}
