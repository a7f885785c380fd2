package family

import (
	"slices"
	"time"
)

// transformerSize is layers × hidden² of BERT models whose published latencies are equal, relative to bert-base (12
// layers of 768): the compute of a transformer is proportional to it.
var transformerSize = map[string]float64{
	"prajjwal1/bert-tiny":   2 * 128 * 128 / (12.0 * 768 * 768),
	"prajjwal1/bert-mini":   4 * 256 * 256 / (12.0 * 768 * 768),
	"prajjwal1/bert-small":  4 * 512 * 512 / (12.0 * 768 * 768),
	"prajjwal1/bert-medium": 8 * 512 * 512 / (12.0 * 768 * 768),
}

// Repair returns the zoo with three defects of the public data corrected, as far as it has them:
//
//   - yolov5s and yolov5m have each other's accuracy;
//   - the four ResNeSts take the same time on the 1080 Ti: there the smallest keeps it, and the others become slower by
//     the factors measured on the newer GPU;
//   - BERT tiny to medium take the same time everywhere: each takes at least its share, by layers × hidden², of
//     bert-base.
//
// With these defects, accuracy costs nothing where it should.
func (z *Zoo) Repair() *Zoo {
	// Copy the measurements, so that the published zoo stays unchanged.
	out := &Zoo{Name: "repaired", Kinds: z.Kinds}
	for _, f := range z.Families {
		mended := Family{Name: f.Name}
		for _, v := range f.Variants {
			mended.Variants = append(mended.Variants, v.cloneVariant())
		}
		out.Families = append(out.Families, mended)
	}

	out.swapYOLO()
	out.spreadResNeSt()
	out.spreadBERT()
	return out
}

// cloneVariant copies a variant's measurements.
func (v *Variant) cloneVariant() Variant {
	c := Variant{Name: v.Name, Accuracy: v.Accuracy}
	for _, measured := range v.Measured {
		copied := make(map[int]time.Duration, len(measured))
		for size, d := range measured {
			copied[size] = d
		}
		c.Measured = append(c.Measured, copied)
	}
	return c
}

// findVariant returns a variant by name, or nil.
func (z *Zoo) findVariant(name string) *Variant {
	for f := range z.Families {
		for i := range z.Families[f].Variants {
			if v := &z.Families[f].Variants[i]; v.Name == name {
				return v
			}
		}
	}
	return nil
}

func (z *Zoo) swapYOLO() {
	s, m := z.findVariant("yolov5s"), z.findVariant("yolov5m")

	// If the larger model is already the better one, the zoo is corrected or has other numbers.
	if s != nil && m != nil && s.Accuracy > m.Accuracy {
		s.Accuracy, m.Accuracy = m.Accuracy, s.Accuracy
	}
}

func (z *Zoo) spreadResNeSt() {
	old, newer := slices.Index(z.Kinds, "1080ti"), slices.Index(z.Kinds, "v100")
	least := z.findVariant("resnest14")
	if least == nil || old < 0 || newer < 0 {
		return
	}

	for _, name := range []string{"resnest26", "resnest50", "resnest269"} {
		v := z.findVariant(name)
		if v == nil {
			continue
		}
		for size, base := range least.Measured[old] {
			// Assume the same proportion between the four on both GPUs, which is the only measurement.
			if least.Measured[newer][size] > 0 && v.Measured[newer][size] > 0 {
				factor := float64(v.Measured[newer][size]) / float64(least.Measured[newer][size])
				v.Measured[old][size] = time.Duration(float64(base) * factor)
			} else {
				delete(v.Measured[old], size) // no measurement says how much slower this size is
			}
		}
	}
}

func (z *Zoo) spreadBERT() {
	base := z.findVariant("bert-base-uncased")
	if base == nil {
		return
	}

	for name, share := range transformerSize {
		v := z.findVariant(name)
		if v == nil {
			continue
		}

		// Keep the published time where it is longer.
		for kind := range v.Measured {
			for size, d := range v.Measured[kind] {
				v.Measured[kind][size] = max(d, time.Duration(share*float64(base.Measured[kind][size])))
			}
		}
	}
}
