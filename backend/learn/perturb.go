package learn

import "math/rand/v2"

// A few hundred samples are learnt by heart before the next ones come. So no step sees an image twice as it is: each
// time it is moved, lit otherwise and, if the model's classes allow it, mirrored. Its class stays.

const (
	moveMost  = 1   // pixels, in each direction
	lightMost = 0.2 // share of the light, more or less
)

// perturb writes to out an image as it might have been taken a moment later. Pixels from outside are those of the edge.
func perturb(out, in []byte, h, w int, mirror bool, rng *rand.Rand) {
	dy, dx := rng.IntN(2*moveMost+1)-moveMost, rng.IntN(2*moveMost+1)-moveMost
	lit := lightTable(1 + lightMost*(2*rng.Float64()-1))
	mirror = mirror && rng.IntN(2) == 0

	for y := range h {
		row := in[min(max(y+dy, 0), h-1)*w*3:]
		for x := range w {
			from := row[min(max(x+dx, 0), w-1)*3:]
			if mirror {
				x = w - 1 - x
			}
			to := out[(y*w+x)*3:]
			to[0], to[1], to[2] = lit[from[0]], lit[from[1]], lit[from[2]]
		}
	}
}

// lightTable returns each brightness under a share of the light.
func lightTable(share float64) (lit [256]byte) {
	for v := range lit {
		lit[v] = byte(min(255, share*float64(v)+0.5))
	}
	return lit
}
