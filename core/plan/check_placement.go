package plan

import "fmt"

// CheckPlacement reports what is wrong with a placement that a plan wants: a GPU without room for it, a model that is
// served and would not be, one that is loaded although nobody had it, or one on a GPU that cannot load it.
func CheckPlacement(s Snapshot, wanted Placement) error {
	for g, x := range s.GPUs {
		var static, dynamic, now, nowDynamic int64
		for m, y := range s.Models {
			if wanted[m][g] == Offered {
				static, dynamic = static+y.Static, max(dynamic, y.Dynamic)
				if s.Present[m][g] == Absent && !s.Loadable[m][g] {
					return fmt.Errorf("model %d: wanted on GPU %d, which cannot load it", m, g)
				}
			}
			if s.Present[m][g] != Absent {
				now, nowDynamic = now+y.Static, max(nowDynamic, y.Dynamic)
			}
		}

		// What a GPU has now it may keep, whatever it was measured to take.
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
