package engine

import (
	"errors"

	"downbeat.dev/core/plan"
)

// PlanOptions limit a plan.
type PlanOptions struct {
	Parts     int     // sub-clusters per kind and name of GPU; 0: as few as their memory allows
	MoveShare float64 // share of the models' load time that may move, 0 to 1
}

// Plan is a numbered placement of models, which an operator can inspect, edit and apply.
type Plan struct {
	Number uint64         `json:"number"`
	Models []PlannedModel `json:"models"`
}

// PlannedModel is a model and its intended GPUs, each as backend/gpu. Models that a plan does not name stay where
// they are.
type PlannedModel struct {
	Model   string   `json:"model"`
	Version string   `json:"version"`
	GPUs    []string `json:"gpus"`
}

// ProposedPlan is a plan with its steps and the resulting imbalance: (max − min)/average of the load over
// sub-clusters.
type ProposedPlan struct {
	Plan
	SubClusters     int           `json:"subclusters"`
	Assignment      []PlannedPart `json:"assignment"` // by sub-cluster
	Moved           int           `json:"moved"`      // models that leave a home
	ImbalanceDemand float64       `json:"imbalance_demand"`
	ImbalanceMemory float64       `json:"imbalance_memory"`
	Steps           []PlanStep    `json:"steps"`
	LoadSeconds     float64       `json:"load_seconds"` // of the backend whose loads take longest
	NotServed       []string      `json:"not_served"`   // models that are not offered for a while, as no GPU has room for both
}

// PlannedPart is a sub-cluster of a proposal: its GPUs, how many of them its models ask for, and the models.
type PlannedPart struct {
	GPUs   []string `json:"gpus"`
	Demand float64  `json:"demand_gpus"`
	Models []string `json:"models"`
}

// PlanStep is one step for one model on one GPU.
type PlanStep struct {
	Number int    `json:"number"`
	Act    string `json:"act"`
	Model  string `json:"model"`
	GPU    string `json:"gpu"`
}

// PlanStatus is the state of the latest plan and the present placement.
type PlanStatus struct {
	Number    uint64       `json:"number"` // 0: none
	State     PlanState    `json:"state"`
	Taken     int          `json:"steps_taken"`
	Left      int          `json:"steps_left"`
	UnderWay  []PlanStep   `json:"under_way"` // loads and unloads in progress, at most one per backend
	NotServed []string     `json:"not_served"`
	LeftOut   []LeftOutOf  `json:"left_out"`
	GPUs      []PlannedGPU `json:"gpus"`
}

// LeftOutOf is a model that a GPU did not get, and the reason.
type LeftOutOf struct {
	Model string `json:"model"`
	GPU   string `json:"gpu"`
	Why   string `json:"why"`
}

// PlannedGPU is a GPU and its models.
type PlannedGPU struct {
	GPU        string          `json:"gpu"`
	SubCluster string          `json:"subcluster"`
	Kind       string          `json:"kind,omitempty"`
	Memory     int64           `json:"memory_bytes"` // 0: unknown
	Used       int64           `json:"used_bytes"`   // by models, including the working memory of the largest one
	Models     []ResidentModel `json:"models"`
}

// ResidentModel is a model on a GPU.
type ResidentModel struct {
	Model   string  `json:"model"`
	State   string  `json:"state"` // loaded, warm or offered
	Static  int64   `json:"static_bytes"`
	Dynamic int64   `json:"dynamic_bytes"`
	Rate    float64 `json:"rate"` // requests/s, on all GPUs
}

// ErrPlan is wrapped by the refusal of a plan that does not fit the cluster's present state.
var ErrPlan = errors.New("plan refused")

// ProposePlan makes a plan for the present demand and does not apply it. It may take some 100 ms, without blocking
// the engine.
func (e *Engine) ProposePlan(o PlanOptions) (x ProposedPlan, err error) {
	var v *placementView
	var number uint64
	if err := e.runInRegistry(func() { v, number = e.reg.viewPlacement(), e.reg.planNumber()+1 }); err != nil {
		return x, err
	}

	// The search runs on the caller's goroutine, so the registry stays free.
	v.Parts, v.MoveShare = o.Parts, o.MoveShare
	p, err := plan.PlaceModels(v.Snapshot)
	if err != nil {
		return x, v.namePool(err)
	}
	r, err := plan.Reconfigure(*v.Fleet(), v.Present, p.Wanted)
	if err != nil {
		return x, err
	}

	x = ProposedPlan{Plan: Plan{number, documentOf(v.keys, v.gpus, p.Wanted)}, SubClusters: len(p.SubClusters), Assignment: []PlannedPart{}, Moved: p.Moved,
		ImbalanceDemand: p.ImbalanceDemand, ImbalanceMemory: p.ImbalanceMemory, Steps: []PlanStep{}, LoadSeconds: v.longestLoads(r.Steps).Seconds(), NotServed: v.names(r.Gaps)}

	// Everything is named, because numbers mean nothing outside of this view.
	for _, c := range p.SubClusters {
		part := PlannedPart{Demand: c.Demand, Models: v.names(c.Models)}
		for _, g := range c.GPUs {
			part.GPUs = append(part.GPUs, v.gpuName(g))
		}
		x.Assignment = append(x.Assignment, part)
	}
	for _, s := range r.Steps {
		x.Steps = append(x.Steps, v.describeStep(s))
	}
	return x, nil
}

// ApplyPlan starts to apply a plan and returns at once. It refuses a plan while another is in progress, a plan older
// than the latest, and one with unknown models or GPUs.
func (e *Engine) ApplyPlan(p Plan) (s PlanStatus, err error) {
	merr := e.runInRegistry(func() {
		if err = e.reg.applyPlan(p); err == nil {
			s = e.reg.planStatus()
		}
	})
	return s, errors.Join(merr, err)
}

// RollBackPlan restores the placement from before the latest plan. The plan may still be in progress.
func (e *Engine) RollBackPlan() (s PlanStatus, err error) {
	merr := e.runInRegistry(func() {
		if err = e.reg.rollBackPlan(); err == nil {
			s = e.reg.planStatus()
		}
	})
	return s, errors.Join(merr, err)
}

// PlanStatus returns the state of the latest plan and the present placement.
func (e *Engine) PlanStatus() (s PlanStatus, err error) {
	err = e.runInRegistry(func() { s = e.reg.planStatus() })
	return s, err
}
