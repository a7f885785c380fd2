package goodput

import (
	"bufio"
	"cmp"
	"encoding/json"
	"os"
	"slices"
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/plan"
)

// TestPartedAtBest makes the best case that we found by hand for sub-clusters: models of alike room between deadline and execution are together, a model that
// two sub-clusters would share is split between them, and each sub-cluster is loaded to its own goodput. At 16 GPUs each that is less than
// 0.97 of the whole cluster, at 32 more.
func TestPartedAtBest(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute of both cores")
	}
	whole := wholeGoodput(t)
	for _, parts := range []int{20, 10} {
		worst, all := 2.0, 0.0
		for _, part := range cutAlike(t, partedSettings()[0], parts, whole) {
			carried := ownGoodput(t, part, whole) / whole
			worst, all = min(worst, carried), all+1/carried/float64(parts)
		}
		t.Logf("%d sub-clusters of %d GPUs: %.3f of the whole at equal demand, %.3f where each is loaded to its own goodput", parts, partedGPUs/parts, worst, 1/all)
		if isEnough := 1/all >= 0.97; isEnough != (partedGPUs/parts >= 32) {
			t.Errorf("%d sub-clusters: %.3f", parts, 1/all)
		}
	}
}

// TestPartedByDemand prints what sub-clusters carry of the whole by their demand alone, if all were equally full and none crowded (decision 0364): at 16 GPUs
// less than 0.97, however the models are assigned.
func TestPartedByDemand(t *testing.T) {
	s, whole := partedSettings()[0], wholeGoodput(t)
	for _, c := range []struct {
		gpus int
		full float64 // the share of its GPUs that a sub-cluster of alike models is asked for at its goodput
	}{{16, 0.976}, {32, 0.985}} {
		lo, hi := 0.5*whole, 1.5*whole
		for hi-lo > 1 {
			if rate := (lo + hi) / 2; demandAmong(t, s, rate, c.gpus) <= c.full*partedGPUs {
				lo = rate
			} else {
				hi = rate
			}
		}
		t.Logf("sub-clusters of %d GPUs: %.3f of the whole", c.gpus, lo/whole)
		if isEnough := lo/whole >= 0.97; isEnough && c.gpus == 16 || lo/whole > 0.99 || lo/whole < 0.9 {
			t.Errorf("%d GPUs: %.3f", c.gpus, lo/whole)
		}
	}
}

// demandAmong is the demand of all models, in GPUs, in sub-clusters of so many.
func demandAmong(t *testing.T, s Setting, rate float64, gpus int) float64 {
	sum := 0.0
	for i, e := range s.Models {
		table, err := e.Profile()
		if err != nil {
			t.Fatal(err)
		}
		cost, err := plan.CostAmong(table, e.SLO, rate*s.Share[i], gpus)
		if err != nil {
			t.Fatal(err)
		}
		sum += rate * s.Share[i] * cost
	}
	return sum
}

// wholeGoodput is what the whole cluster carries, in requests/s, by the results that are kept.
func wholeGoodput(t *testing.T) float64 {
	f, err := os.Open("../results/goodput/parted/parted.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var row struct {
			Setting string
			Goodput float64 `json:"goodput_rps"`
		}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		if row.Setting == "parted-1" {
			return row.Goodput
		}
	}
	t.Fatal("no row of the whole cluster")
	return 0
}

// cutAlike cuts a cluster into settings of equal demand at a rate, along the order of SLO − ℓ(1). Shares are of the whole rate.
func cutAlike(t *testing.T, s Setting, parts int, rate float64) []Setting {
	demand, room := make([]float64, len(s.Models)), make([]time.Duration, len(s.Models))
	order := make([]int, len(s.Models))
	total := 0.0
	for i, e := range s.Models {
		table, err := e.Profile()
		if err != nil {
			t.Fatal(err)
		}
		cost, _, err := plan.Cost(table, e.SLO, rate*s.Share[i])
		if err != nil {
			t.Fatal(err)
		}
		order[i], demand[i], room[i] = i, rate*s.Share[i]*cost, e.SLO-table.Exec(1)
		total += demand[i]
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(room[a], room[b]) })

	out := make([]Setting, parts)
	for k := range out {
		out[k] = Setting{Name: "part", GPUs: s.GPUs / parts, Gaps: arrivals.Poisson}
	}
	k, free := 0, total/float64(parts)
	for _, i := range order {
		for left := 1.0; left > 1e-9; {
			take := left
			if k < parts-1 {
				take = min(left, free/demand[i])
			}
			out[k].Models, out[k].Share = append(out[k].Models, s.Models[i]), append(out[k].Share, s.Share[i]*take)
			left, free = left-take, free-take*demand[i]
			if free < 1e-9 && k < parts-1 {
				k, free = k+1, total/float64(parts)
			}
		}
	}
	return out
}

// ownGoodput is the rate of the whole cluster at which a part by itself is at its goodput.
func ownGoodput(t *testing.T, part Setting, whole float64) float64 {
	share := 0.0
	for _, x := range part.Share {
		share += x
	}
	for i := range part.Share {
		part.Share[i] /= share
	}

	// As the kept results: two seeds of ten seconds.
	o := DefaultOptions()
	o.Seeds, o.Span, o.Precision = 2, 10*time.Second, 0.002
	policies, err := Policies("downbeat")
	if err != nil {
		t.Fatal(err)
	}
	w, err := Prepare(part, o, part.Capacity()*1.02)
	if err != nil {
		t.Fatal(err)
	}
	return w.Search(policies[0], 0.95*whole*share) / share
}
