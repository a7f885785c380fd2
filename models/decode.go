package models

import (
	"cmp"
	"fmt"
	"slices"

	"downbeat.dev/models/scene"
)

// Detection is one detected object.
type Detection struct {
	Class int     // index of the model's label
	Score float32 // 0 to 1
	Box   scene.Rect
}

// Decode turns a detector's answer for one image into detections, best first. It converts scores [n classes] and
// boxes [n 4], as shares of the image, to boxes in pixels of a width×height image. It keeps boxes with a score of at
// least threshold, and drops a box whose overlap with a better one of its class exceeds half (non-maximum
// suppression).
func Decode(scores, boxes []float32, classes int, threshold float32, width, height float64) ([]Detection, error) {
	if classes < 1 || len(scores)%classes != 0 || len(boxes)*classes != len(scores)*4 {
		return nil, fmt.Errorf("decode: %d scores and %d box values for %d classes: want n·classes and n·4", len(scores), len(boxes), classes)
	}

	var found []Detection
	for i := 0; i < len(scores)/classes; i++ {
		b := boxes[4*i : 4*i+4]
		for c, s := range scores[i*classes : (i+1)*classes] {
			if s >= threshold {
				found = append(found, Detection{c, s, scene.Rect{
					X0: float64(b[0]) * width, Y0: float64(b[1]) * height, X1: float64(b[2]) * width, Y1: float64(b[3]) * height}})
			}
		}
	}

	// The best detection of an object suppresses those that overlap it.
	slices.SortStableFunc(found, func(a, b Detection) int { return cmp.Compare(b.Score, a.Score) })
	kept := found[:0]
	for _, d := range found {
		if !isCovered(kept, d) {
			kept = append(kept, d)
		}
	}
	return kept, nil
}

func isCovered(kept []Detection, d Detection) bool {
	for _, k := range kept {
		if k.Class == d.Class && k.Box.IoU(d.Box) > 0.5 {
			return true
		}
	}
	return false
}

// Best returns a classifier's best class and its score.
func Best(scores []float32) (class int, score float32) {
	for i, s := range scores {
		if i == 0 || s > score {
			class, score = i, s
		}
	}
	return class, score
}
