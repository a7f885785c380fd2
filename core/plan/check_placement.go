package plan

import "fmt"

// CheckPlacement reports what is wrong with the placement that a plan wants: a GPU without room for it, a served
// model that would lose its last GPU, a model that is loaded although no GPU had it, or a model on a GPU that cannot
// load it.
func CheckPlacement(s Snapshot, wanted Placement) error {
	for g, x := range s.GPUs {
		var dynamic, nowDynamic int64
		var wants, has []int
		for m, y := range s.Models {
			if wanted[m][g] == Offered {
				wants, dynamic = append(wants, m), max(dynamic, y.Dynamic)
				if s.Present[m][g] == Absent && !s.Loadable[m][g] {
					return fmt.Errorf("model %d: wanted on GPU %d, which cannot load it", m, g)
				}
			}
			if s.Present[m][g] != Absent {
				has, nowDynamic = append(has, m), max(nowDynamic, y.Dynamic)
			}
		}

		static, now := s.heldBy(wants), s.heldBy(has)

		// A GPU may keep its present models, whatever their measured sizes.
		if room := max(x.Memory, now+nowDynamic); x.Memory > 0 && static+dynamic > room {
			return fmt.Errorf("GPU %d: %d bytes wanted, it has %d", g, static+dynamic, room)
		}
	}

	for m := range s.Models {
		had, has := 0, 0
		for g := range s.GPUs {
			if s.Present[m][g] != Absent {
				had++
			}
			if wanted[m][g] != Absent {
				has++
			}
		}
		if had > 0 && has == 0 || had == 0 && has > 0 {
			return fmt.Errorf("model %d: on %d GPUs, wanted on %d", m, had, has)
		}
	}
	return nil
}

// heldBy returns the static memory of some models on one GPU.
func (s *Snapshot) heldBy(models []int) int64 {
	return heldBytes(models, func(m int) int64 { return s.Models[m].Static }, func(m int) int64 { return s.Models[m].Shared }, func(m int) int32 { return s.Models[m].Trunk })
}
