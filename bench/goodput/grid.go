package goodput

import (
	"fmt"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
)

// Levels of the grid over which policies are compared. The grid is our own: no paper has it, and no policy's
// constants were tuned on it.
var (
	gridGPUs   = [4]int{8, 24, 64, 128}
	gridGammas = [4]float64{0.05, 0.1, 0.3, 1}
	gridZipfs  = [4]float64{0, 0.6, 0.9, 1.2}
	gridScales = [4]float64{0.8, 1, 1.4, 2} // of the zoo's SLOs
)

// gridSettings returns 65 of the 512 combinations of zoo, GPUs, burstiness, popularity and SLO. It has all
// combinations of GPUs and burstiness; popularity and SLO follow two orthogonal Latin squares for each zoo and half,
// so that every two levels of any two factors occur together. The last cell is the one in which an eager policy was
// first seen ahead.
func gridSettings() []Setting {
	var out []Setting
	for _, zoo := range gridZoos {
		for half := range 2 {
			for g := range gridGPUs {
				for b := range gridGammas {
					// The second half exchanges neighbouring levels of the squares and so has other pairs than the
					// first.
					popularity, scale := latinSquare(1, g, b), latinSquare(2, g, b)
					if half == 1 {
						popularity, scale = latinSquare(2, g, b)^1, latinSquare(3, g, b)^1
					}
					out = append(out, gridCell(zoo, gridGPUs[g], gridGammas[b], gridZipfs[popularity], gridScales[scale]))
				}
			}
		}
	}
	return append(out, gridCell("a100", 24, 0.1, 0.9, 0.8))
}

var gridZoos = []string{"1080ti", "a100"}

// gridCell returns one setting: a zoo with scaled SLOs, whose first models are the most popular.
func gridCell(zoo string, gpus int, gamma, zipf, scale float64) Setting {
	models := profile.GTX1080Ti()
	if zoo == "a100" {
		models = profile.A100()
	}

	for i := range models {
		models[i].SLO = time.Duration(float64(models[i].SLO) * scale)
	}

	return Setting{
		Name:   fmt.Sprintf("grid-%s-%dgpus-gamma%g-zipf%g-slo%g", zoo, gpus, gamma, zipf, scale),
		Models: models, Share: arrivals.Zipf(len(models), zipf), GPUs: gpus, Gaps: arrivals.Gaps{Shape: gamma},
	}
}

// latinSquare returns row + factor·column in the field of four elements. Squares of different factors are orthogonal.
func latinSquare(factor, row, column int) int {
	// Addition in the field of four is exclusive or; multiplication needs a table.
	products := [4][4]int{{0, 0, 0, 0}, {0, 1, 2, 3}, {0, 2, 3, 1}, {0, 3, 1, 2}}
	return row ^ products[factor][column]
}
