package kernels

import (
	"downbeat.dev/cuda"
)

func convDepthwise(m *numbers, l cuda.Launch) { runConv(m, l) }

// image describes the position of an image's elements, in either layout.
type image struct{ c, h, w, y, x, image int }

func imageOf(c, h, w int, nhwc int32) image {
	if nhwc != 0 {
		return image{c: 1, y: w * c, x: c, image: c * h * w, h: h, w: w}
	}
	return image{c: h * w, y: w, x: 1, image: c * h * w, h: h, w: w}
}

func runConv(m *numbers, l cuda.Launch) {
	p := paramsOf[Conv](l.Params)
	n, c, h, w, k := int(p.N), int(p.C), int(p.H), int(p.Wd), int(p.K)
	oh, ow, r, s, groups := int(p.OH), int(p.OW), int(p.R), int(p.S), int(p.Groups)
	cg, kg := c/groups, k/groups
	x, wt := m.readNumbers(p.X, n*c*h*w), m.readNumbers(p.W, k*cg*r*s)
	bias, res := m.readOptional(p.Bias, k), m.readOptional(p.Residual, n*k*oh*ow)
	y := m.resultRoom(p.Y, n*k*oh*ow)

	// Both layouts use the same loops; only the strides differ.
	in, out, weight := imageOf(c, h, w, p.NHWC), imageOf(k, oh, ow, p.NHWC), imageOf(cg, r, s, p.NHWC)

	line := make([]float64, ow)
	for i := range n * k * oh { // one output line at a time; its sums run over c, r, s
		ni, ki, oi := i/(k*oh), i/oh%k, i%oh
		clear(line)

		for ci := range cg {
			for ri := range r {
				yi := oi*int(p.StrideH) - int(p.PadH) + ri*int(p.DilH)
				// Padding lies outside the image and adds nothing.
				if yi < 0 || yi >= h {
					continue
				}

				row := x[ni*in.image+(ki/kg*cg+ci)*in.c+yi*in.y:]
				for si := range s {
					v := float64(wt[ki*weight.image+ci*weight.c+ri*weight.y+si*weight.x])
					convLine(line, row, in.x, w, v, int(p.StrideW), si*int(p.DilW)-int(p.PadW))
				}
			}
		}

		// The order of the epilogue is that of the kernels: bias, residual, activation.
		for j, v := range line {
			at := ni*out.image + ki*out.c + oi*out.y + j*out.x
			if bias != nil {
				v += float64(bias[ki])
			}
			if res != nil {
				v += float64(res[at])
			}
			y[at] = float32(applyActivation(p.Act, v, float64(p.A), float64(p.B)))
		}
	}
}

// convLine adds weight times the elements of a row of n that lie under each output; pitch is the distance of adjacent
// elements.
func convLine(line []float64, row []float32, pitch, n int, weight float64, stride, at int) {
	for j := range line {
		if xi := j*stride + at; xi >= 0 && xi < n {
			line[j] += weight * float64(row[xi*pitch])
		}
	}
}
