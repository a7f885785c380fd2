package plan

import "fmt"

// CheckReconfiguration replays the steps from present to wanted. It reports the first step that is impossible, that
// exceeds a GPU's memory, or that removes the last offer of a wanted model which is not among the gaps.
func CheckReconfiguration(f Fleet, present, wanted Placement, r Reconfiguration) error {
	at := func(s Step) Residence { return present[s.Model][s.GPU] }
	// The requirements and results of each act, written without the planner's own code.
	from := [...][]Residence{StepLoad: {Absent}, StepWarmUp: {Loaded}, StepOffer: {Warm}, StepWithdraw: {Offered}, StepUnload: {Loaded, Warm}}
	to := [...]Residence{StepLoad: Loaded, StepWarmUp: Warm, StepOffer: Offered, StepWithdraw: Warm, StepUnload: Absent}

	replay := make(Placement, len(present))
	for m := range present {
		replay[m] = append(replay[m], present[m]...)
	}
	present = replay

	for i, s := range r.Steps {
		possible := false
		for _, residence := range from[s.Kind] {
			possible = possible || at(s) == residence
		}
		if !possible || s.Number != i+1 {
			return fmt.Errorf("step %d (number %d): %v model %d on GPU %d, where it is in state %d", i+1, s.Number, s.Kind, s.Model, s.GPU, at(s))
		}
		replay[s.Model][s.GPU] = to[s.Kind]

		// V3, after every step: the loaded models, and room for the largest one to run.
		var peak int64
		var there []int
		for m := range replay {
			if replay[m][s.GPU] == Absent {
				continue
			}
			there = append(there, m)
			if f.Dynamic[m] > peak {
				peak = f.Dynamic[m]
			}
		}
		used := f.heldBy(there)
		if used+peak > f.Memory[s.GPU] {
			return fmt.Errorf("step %d: %v model %d: %d bytes on GPU %d of %d", s.Number, s.Kind, s.Model, used+peak, s.GPU, f.Memory[s.GPU])
		}

		if s.Kind == StepWithdraw {
			if err := checkCover(s, replay[s.Model], wanted[s.Model], r.Gaps); err != nil {
				return err
			}
		}
	}

	// The result must be exactly the wanted placement.
	for m := range replay {
		for g := range replay[m] {
			if replay[m][g] != wanted[m][g] {
				return fmt.Errorf("model %d on GPU %d ends in state %d, want %d", m, g, replay[m][g], wanted[m][g])
			}
		}
	}
	return nil
}

// heldBy returns the static memory of some models on one GPU.
func (f *Fleet) heldBy(models []int) int64 {
	static, none := func(m int) int64 { return f.Static[m] }, func(int) int64 { return 0 }
	if f.Trunk == nil {
		return heldBytes(models, static, none, func(int) int32 { return 0 })
	}
	return heldBytes(models, static, func(m int) int64 { return f.Shared[m] }, func(m int) int32 { return f.Trunk[m] })
}

// heldBytes sums memory without the planner's own code: each model's own part, and for each trunk the largest part of
// its models.
func heldBytes(models []int, static, shared func(m int) int64, trunk func(m int) int32) (bytes int64) {
	for i, m := range models {
		bytes += static(m) - shared(m)

		// The first model of a trunk with the largest part counts it.
		counts := true
		for k, other := range models {
			if trunk(other) == trunk(m) && (shared(other) > shared(m) || shared(other) == shared(m) && k < i) {
				counts = false
			}
		}
		if counts {
			bytes += shared(m)
		}
	}
	return bytes
}

func checkCover(s Step, now, wanted []Residence, gaps []int32) error {
	wantedSomewhere := false
	for g := range now {
		if now[g] == Offered {
			return nil
		}
		wantedSomewhere = wantedSomewhere || wanted[g] == Offered
	}

	for _, m := range gaps {
		if m == s.Model {
			return nil
		}
	}

	if wantedSomewhere {
		return fmt.Errorf("step %d leaves model %d without a GPU", s.Number, s.Model)
	}
	return nil
}
