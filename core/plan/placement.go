package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/profile"
)

// PlacedGPU is one GPU of a Snapshot.
type PlacedGPU struct {
	// Pool is the number of the GPUs that may form one sub-cluster: those of one kind and one sub-cluster name.
	// Numbers start at 0 and have no gaps.
	Pool int32
	// Part is the present sub-cluster of the GPU, or Nowhere.
	Part   int32
	Host   int32 // number of its backend, which loads and unloads one model at a time
	Memory int64 // bytes; 0: not known, so there is no limit
}

// PlacedModel is one model of a Snapshot.
type PlacedModel struct {
	Rate            float64 // requests/s
	SLO             time.Duration
	Static, Dynamic int64 // bytes on each GPU while loaded, and in addition while a batch runs
	// Shared is the part of the static bytes that belongs to the layers which all models of one Trunk have in common,
	// as in Fleet; 0 and 0: none.
	Shared int64
	Trunk  int32
	Load   time.Duration // duration of loading and warming up on one GPU
	// Profiles are ℓ(b) by pool; nil: not known in that pool, and neither is its demand.
	Profiles []*profile.Profile
}

// Snapshot is the input of the placement of models.
type Snapshot struct {
	GPUs    []PlacedGPU
	Models  []PlacedModel
	Present Placement
	// Loadable reports by model and GPU whether the GPU's backend can load the model.
	Loadable [][]bool
	// Parts is the number of sub-clusters of each pool; 0: as few as its memory allows.
	Parts int
	// MoveShare bounds the moves, and Effort the search, as in AssignmentProblem.
	MoveShare float64
	Effort    int
}

// PlacementPlan is a wanted placement, and its imbalance in the worst pool.
type PlacementPlan struct {
	Wanted                           Placement
	SubClusters                      []PlacedSubCluster // of all pools
	Moved                            int                // models that leave a home
	ImbalanceDemand, ImbalanceMemory float64
}

// PlacedSubCluster is the part of a pool that Assign gives some models to.
type PlacedSubCluster struct {
	GPUs, Models []int32
	Demand       float64 // GPUs that its models ask for, with what they wait for one another (CostAmong)
}

// PlaceModels decides which GPUs hold which models. It divides each pool into sub-clusters along the present ones,
// and Assign assigns the pool's models to them (Symphony §4.7). A model that no GPU has stays unloaded, because
// unloading it was intended. A model in several pools stays in all of them.
//
// It fails with a PoolError if a pool has no room for its models, or fewer GPUs than Parts. A ModelsError in it says which
// models fit nowhere.
func PlaceModels(s Snapshot) (PlacementPlan, error) {
	if err := s.validate(); err != nil {
		return PlacementPlan{}, err
	}
	for m, x := range s.Models {
		if err := checkShared(fmt.Sprintf("model %d", m), x.Static, x.Shared, x.Trunk); err != nil {
			return PlacementPlan{}, err
		}
		if int(x.Trunk) > len(s.Models) {
			return PlacementPlan{}, refuse(fmt.Sprintf("model %d: trunk", m), x.Trunk, fmt.Sprintf("0 to %d, the number of models", len(s.Models)))
		}
	}

	p := PlacementPlan{Wanted: make(Placement, len(s.Models))}
	for m := range p.Wanted {
		p.Wanted[m] = make([]Residence, len(s.GPUs))
	}

	pools := int32(0)
	for _, g := range s.GPUs {
		pools = max(pools, g.Pool+1)
	}
	for pool := range pools {
		if err := s.placePool(pool, &p); err != nil {
			return PlacementPlan{}, &PoolError{s.poolGPUs(pool), err}
		}
	}
	return p, s.Fleet().validate(s.Present, p.Wanted)
}

// Fleet returns the memory of the snapshot's GPUs and models. A GPU of unknown memory has room for all models. Any
// GPU has room for its present models, whatever the sum of their measured sizes.
func (s *Snapshot) Fleet() *Fleet {
	f := &Fleet{}
	for _, g := range s.GPUs {
		f.Memory, f.Hosts = append(f.Memory, g.memoryRoom()), append(f.Hosts, g.Host)
	}
	for _, m := range s.Models {
		f.Static, f.Dynamic = append(f.Static, m.Static), append(f.Dynamic, m.Dynamic)
		f.Shared, f.Trunk = append(f.Shared, m.Shared), append(f.Trunk, m.Trunk)
	}
	for g := range f.Memory {
		f.Memory[g] = max(f.Memory[g], f.needs(s.Present, g))
	}
	return f
}

// memoryRoom returns the memory that a plan may use.
func (g *PlacedGPU) memoryRoom() int64 { return cmp.Or(g.Memory, int64(roomUnknown)) }

// roomUnknown holds every model of a snapshot: 2¹⁸ of them, of 2⁴⁴ bytes each.
const roomUnknown = servicesMax * bytesMax

func (s *Snapshot) validate() error {
	if s.Parts < 0 || s.Parts > gpusMax {
		return refuse("parts", s.Parts, fmt.Sprintf("0 (as few as memory allows) to %d", gpusMax))
	}
	if len(s.Present) != len(s.Models) || len(s.Loadable) != len(s.Models) {
		return refuse("number of models present and loadable", [2]int{len(s.Present), len(s.Loadable)}, fmt.Sprint(len(s.Models)))
	}

	for g, x := range s.GPUs {
		if x.Pool < 0 || int(x.Pool) >= len(s.GPUs) || x.Memory < 0 || x.Memory > bytesMax {
			return refuse(fmt.Sprintf("GPU %d: pool and memory", g), [2]int64{int64(x.Pool), x.Memory}, "a pool without gaps, 0 to 2⁴⁴ bytes")
		}
	}
	for m := range s.Models {
		if len(s.Present[m]) != len(s.GPUs) || len(s.Loadable[m]) != len(s.GPUs) {
			return refuse(fmt.Sprintf("model %d: number of GPUs", m), [2]int{len(s.Present[m]), len(s.Loadable[m])}, fmt.Sprint(len(s.GPUs)))
		}
	}
	return nil
}

// placePool assigns the models of one pool to sub-clusters of its GPUs.
func (s *Snapshot) placePool(pool int32, p *PlacementPlan) error {
	gpus := s.poolGPUs(pool)
	models := s.poolModels(gpus)
	if len(gpus) == 0 || len(models) == 0 {
		return nil
	}

	problem := AssignmentProblem{MoveShare: s.MoveShare, Effort: s.Effort}
	groups := s.groupTrunks(models)
	for _, group := range groups {
		problem.Services = append(problem.Services, s.describeGroup(pool, group))
	}
	parts, err := s.dividePool(gpus, problem.Services)
	if err != nil {
		return ofModels(err, groups)
	}
	for _, part := range parts {
		problem.SubClusters = append(problem.SubClusters, SubCluster{GPUs: len(part), Memory: s.leastMemory(part)})
	}
	for i, group := range groups {
		problem.Services[i].Home = s.homeOf(group[0], parts)
		s.addCrowding(&problem.Services[i], pool, group, len(gpus)/len(parts))
	}

	a, err := Assign(problem)
	if err != nil {
		return ofModels(err, groups)
	}
	first := len(p.SubClusters)
	for _, part := range parts {
		p.SubClusters = append(p.SubClusters, PlacedSubCluster{GPUs: part})
	}
	for i, group := range groups {
		x := &p.SubClusters[first+int(a.Home[i])]
		x.Models, x.Demand = append(x.Models, group...), x.Demand+problem.Services[i].Demand
		for _, m := range group {
			s.wantModel(m, x.GPUs, gpus, p.Wanted[m])
		}
	}

	p.Moved += a.Moved
	p.ImbalanceDemand, p.ImbalanceMemory = max(p.ImbalanceDemand, a.ImbalanceDemand), max(p.ImbalanceMemory, a.ImbalanceMemory)
	return nil
}

// ofModels returns an error of Assign about models instead of services.
func ofModels(err error, groups [][]int32) error {
	if of, ok := errors.AsType[*ServiceError](err); ok {
		return &ModelsError{groups[of.Service], of.Err}
	}
	return err
}

// poolGPUs returns a pool's GPUs, grouped by present sub-cluster.
func (s *Snapshot) poolGPUs(pool int32) (gpus []int32) {
	for g, x := range s.GPUs {
		if x.Pool == pool {
			gpus = append(gpus, int32(g))
		}
	}
	slices.SortStableFunc(gpus, func(a, b int32) int { return cmp.Compare(s.GPUs[a].Part, s.GPUs[b].Part) })
	return gpus
}

// poolModels returns the models that some of the GPUs have.
func (s *Snapshot) poolModels(gpus []int32) (models []int32) {
	for m := range s.Models {
		if slices.ContainsFunc(gpus, func(g int32) bool { return s.Present[m][g] != Absent }) {
			models = append(models, int32(m))
		}
	}
	return models
}

// dividePool splits a pool into sub-clusters of nearly equal numbers of GPUs.
func (s *Snapshot) dividePool(gpus []int32, services []Service) (parts [][]int32, err error) {
	n := s.Parts
	if n == 0 {
		if n, err = FewestSubClusters(services, min(bytesMax, s.leastMemory(gpus)), 0); err != nil {
			return nil, err
		}
		if n > len(gpus) {
			return nil, &InfeasibleError{"sub-clusters with memory for all models, of one GPU each", float64(n), float64(len(gpus)), "GPUs"}
		}
	}
	if n > len(gpus) {
		return nil, refuse("number of sub-clusters", n, fmt.Sprintf("at most %d, the number of GPUs", len(gpus)))
	}

	// If the division has a remainder, the first ones get one GPU more.
	for k := range n {
		parts = append(parts, gpus[k*len(gpus)/n:(k+1)*len(gpus)/n])
	}
	return parts, nil
}

// leastMemory returns the memory of the smallest of some GPUs, with which Assign computes.
func (s *Snapshot) leastMemory(gpus []int32) int64 {
	least := int64(bytesMax)
	for _, g := range gpus {
		least = min(least, s.GPUs[g].memoryRoom())
	}
	return least
}

// homeOf returns the sub-cluster where most GPUs, relative to its size, have the model. It returns Nowhere if all
// have it completely, so that it may stay in any of them at no cost.
func (s *Snapshot) homeOf(m int32, parts [][]int32) int {
	home, best, whole := Nowhere, 0.0, 0
	for j, part := range parts {
		n := 0
		for _, g := range part {
			if s.Present[m][g] != Absent {
				n++
			}
		}

		share := float64(n) / float64(len(part))
		if share > best {
			home, best = j, share
		}
		if n == len(part) {
			whole++
		}
	}
	if whole == len(parts) {
		return Nowhere
	}
	return home
}

// wantModel marks the model as offered by the GPUs of a sub-cluster that can load it. If none can, it stays where it is.
func (s *Snapshot) wantModel(m int32, part, pool []int32, wanted []Residence) {
	able := false
	for _, g := range part {
		if s.Loadable[m][g] || s.Present[m][g] != Absent {
			wanted[g], able = Offered, true
		}
	}
	if able {
		return
	}
	for _, g := range pool {
		if s.Present[m][g] != Absent {
			wanted[g] = Offered
		}
	}
}
