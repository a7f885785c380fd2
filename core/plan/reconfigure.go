package plan

import "fmt"

// Residence is the load state of a model on a GPU.
type Residence uint8

// The residences, in the order of loading.
const (
	Absent  Residence = iota
	Loaded            // in memory, never run
	Warm              // has run, and its profile is confirmed
	Offered           // the ranker may grant the GPU to it
)

// String returns the residence's name in commands and on the page.
func (r Residence) String() string { return [...]string{"absent", "loaded", "warm", "offered"}[r] }

// StepKind is one act on one model on one GPU.
type StepKind uint8

// The acts. StepLoad and StepUnload are each other's inverse, and so are StepOffer and StepWithdraw. StepWarmUp needs
// no inverse, because a warm model is a loaded one.
const (
	StepLoad     StepKind = iota // in an idle window; takes static memory from its beginning
	StepWarmUp                   // run once and check the profile
	StepOffer                    // together with the other GPUs of the model
	StepWithdraw                 // no new batches; running batches end
	StepUnload                   // after the last batch has ended
)

// String returns the act's name in commands and metrics.
func (k StepKind) String() string {
	return [...]string{"load", "warm up", "offer", "withdraw", "unload"}[k]
}

// Inverse returns the act that undoes k. It returns false for StepWarmUp, which needs no undoing.
func (k StepKind) Inverse() (StepKind, bool) {
	return [...]StepKind{StepUnload, StepWarmUp, StepWithdraw, StepOffer, StepLoad}[k], k != StepWarmUp
}

// Step is one numbered act of a reconfiguration.
type Step struct {
	Number     int // from 1
	Kind       StepKind
	Model, GPU int32
}

// Fleet is the GPUs and the models, by number.
type Fleet struct {
	Memory          []int64 // by GPU, in bytes
	Hosts           []int32 // by GPU: its backend, which loads and unloads one model at a time; nil: each GPU has its own
	Static, Dynamic []int64 // by model, in bytes
	// Trunk is, by model, the structure that its layers belong to, above 0. Shared is the part of its static bytes
	// that belongs to the structure; a GPU holds that part once. 0 and 0: the model shares nothing. Nil: no model
	// does.
	Trunk  []int32
	Shared []int64
}

// Placement is a Residence by model and GPU.
type Placement [][]Residence

// Reconfiguration is the steps from one placement to another.
type Reconfiguration struct {
	Steps []Step
	// Gaps are models that are not offered for a while, because no GPU has room for both its present and its wanted
	// models. It is empty if gaps can be avoided.
	Gaps []int32
}

// Reconfigure returns the steps from the present to the wanted placement (Symphony §4.1's epoch, UNIFIED S6). present
// may contain any state, wanted only Absent and Offered. At every moment each GPU has room for the static memory of
// all loaded or loading models and for the largest dynamic memory among them (V3). Every model that is offered and
// wanted stays offered somewhere, except Gaps. A GPU that has left holds no models, and no model is wanted on it.
//
// To resume an interrupted reconfiguration, plan again from the state at that time. To roll it back, plan from there
// to the original state. If a GPU fails to load a model, remove the model from wanted.
func Reconfigure(f Fleet, present, wanted Placement) (Reconfiguration, error) {
	if err := f.validate(present, wanted); err != nil {
		return Reconfiguration{}, err
	}

	r := newReconfiguring(&f, present, wanted)
	for {
		step, ok := r.nextStep()
		if !ok {
			return Reconfiguration{Steps: r.steps, Gaps: r.gaps}, nil
		}
		r.apply(step)
	}
}

func (f *Fleet) validate(present, wanted Placement) error {
	if len(f.Static) != len(f.Dynamic) || len(present) != len(f.Static) || len(wanted) != len(f.Static) {
		return refuse("number of models", [4]int{len(f.Static), len(f.Dynamic), len(present), len(wanted)}, "the same for static and dynamic memory, present and wanted")
	}

	if f.Hosts != nil && len(f.Hosts) != len(f.Memory) {
		return refuse("number of GPUs with a backend", len(f.Hosts), fmt.Sprint(len(f.Memory)))
	}
	if len(f.Trunk) != len(f.Shared) || f.Trunk != nil && len(f.Trunk) != len(f.Static) {
		return refuse("number of models with a trunk", [2]int{len(f.Trunk), len(f.Shared)}, fmt.Sprintf("%d, or 0", len(f.Static)))
	}

	for m := range f.Static {
		if f.Static[m] < 0 || f.Dynamic[m] < 0 || f.Static[m] > bytesMax || f.Dynamic[m] > bytesMax {
			return refuse(fmt.Sprintf("model %d: memory", m), fmt.Sprintf("%d static, %d dynamic", f.Static[m], f.Dynamic[m]), "0 to 2⁴⁴ bytes")
		}
		if shared, trunk := f.trunkOf(m); trunk != 0 || shared != 0 {
			if err := checkShared(fmt.Sprintf("model %d", m), f.Static[m], shared, trunk); err != nil {
				return err
			}
		}
		if len(present[m]) != len(f.Memory) || len(wanted[m]) != len(f.Memory) {
			return refuse(fmt.Sprintf("model %d: number of GPUs", m), [2]int{len(present[m]), len(wanted[m])}, fmt.Sprint(len(f.Memory)))
		}
		for g := range f.Memory {
			if present[m][g] > Offered || wanted[m][g] != Absent && wanted[m][g] != Offered {
				return refuse(fmt.Sprintf("model %d on GPU %d: residence", m, g), [2]Residence{present[m][g], wanted[m][g]}, "present Absent to Offered, wanted Absent or Offered")
			}
		}
	}

	for g := range f.Memory {
		for name, placement := range [2]Placement{present, wanted} {
			if need := f.needs(placement, g); need > f.Memory[g] {
				what := [2]string{"present", "wanted"}[name]
				return &InfeasibleError{fmt.Sprintf("memory of GPU %d for what is %s", g, what), float64(need), float64(f.Memory[g]), "bytes"}
			}
		}
	}
	return nil
}

// hostOf returns the number of a GPU's backend.
func (f *Fleet) hostOf(gpu int32) int32 {
	if f.Hosts == nil {
		return gpu
	}
	return f.Hosts[gpu]
}

// needs returns the memory that a GPU needs in a placement.
func (f *Fleet) needs(p Placement, gpu int) int64 {
	static, dynamic := f.weigh(p, gpu, Nowhere)
	return static + dynamic
}

// weigh returns the memory of a GPU's models in a placement, including model if that is not Nowhere.
func (f *Fleet) weigh(p Placement, gpu, model int) (static, dynamic int64) {
	var w weight
	for m := range p {
		if p[m][gpu] != Absent || m == model {
			shared, trunk := f.trunkOf(m)
			w.addModel(f.Static[m], shared, trunk)
			dynamic = max(dynamic, f.Dynamic[m])
		}
	}
	return w.static, dynamic
}
