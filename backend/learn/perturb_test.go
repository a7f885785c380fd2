package learn

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestPerturbedImagesShowTheSame moves and lights a picture with one bright pixel: the pixel is next to where it was, in
// another light, and on the other side only where that is allowed.
func TestPerturbedImagesShowTheSame(t *testing.T) {
	const h, w, y, x = 6, 8, 2, 1
	in := bytes.Repeat([]byte{50}, h*w*3)
	copy(in[(y*w+x)*3:], []byte{200, 255, 100})
	before := slices.Clone(in)

	rng, out := rand.New(rand.NewPCG(3, 3)), make([]byte, len(in))
	for _, mirror := range []bool{false, true} {
		places, lights, mirrored := map[[2]int]bool{}, map[byte]bool{}, 0
		for range 400 {
			perturb(out, in, h, w, mirror, rng)
			at := slices.Index(out, slices.Max(out)) / 3
			dy, dx := at/w-y, at%w-x
			if dx > 3 {
				mirrored++
				dx = w - 1 - at%w - x
			}
			if dy < -1 || dy > 1 || dx < -1 || dx > 1 {
				t.Fatalf("mirror %v: the pixel moved by %d, %d", mirror, dy, dx)
			}

			red := out[at*3]
			if red < 159 || red > 241 || out[at*3+2] < red/2-1 || out[at*3+2] > red/2+1 {
				t.Fatalf("mirror %v: red 200 became %d, blue 100 %d", mirror, red, out[at*3+2])
			}
			places[[2]int{dy, dx}], lights[red] = true, true
		}

		if len(places) != 9 || len(lights) < 40 {
			t.Errorf("mirror %v: %d places and %d lights of 400 pictures", mirror, len(places), len(lights))
		}
		if (mirrored > 150 && mirrored < 250) != mirror {
			t.Errorf("mirror %v: %d of 400 mirrored", mirror, mirrored)
		}
	}
	if !bytes.Equal(in, before) {
		t.Error("the sample itself was changed")
	}
}
