package models

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/train"
	"downbeat.dev/models/scene"
)

// Numbers of images for measuring accuracy.
const (
	heldOutCrops   = 4000
	heldOutStreets = 1000
)

// Exam selects the images on which a model is measured.
type Exam struct {
	Seed       uint64            // of the training; it determines the held-out images
	Images     int               // 0: the usual number
	Conditions *scene.Conditions // nil: mixed, as in training
	Library    string            // ONNX Runtime; "": as in ort.Library
}

// Evaluate measures a model on held-out images. It returns a classifier's share of right classes, or a detector's
// mean average precision at IoU 0.5.
func (r Recipe) Evaluate(ctx context.Context, m *onnx.Model, e Exam) (float64, error) {
	n := e.Images
	if n == 0 {
		n = map[bool]int{true: heldOutStreets, false: heldOutCrops}[r.Family == "detector"]
	}

	p, err := train.NewPredictor(e.Library, m, BatchMax)
	if err != nil {
		return 0, fmt.Errorf("evaluate %s: %w", r.Name(), err)
	}
	defer p.Close()

	h, w := r.Size()
	paint := NewPainter()
	images := make([]byte, BatchMax*h*w*3)

	// Predictors run full batches only, so round the number of images up.
	n = (n + BatchMax - 1) / BatchMax * BatchMax
	right, score := 0, &precision{}

	for at := 0; at < n; at += BatchMax {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}

		var truths [BatchMax]Truth
		for i := range BatchMax {
			pixels := images[i*h*w*3 : (i+1)*h*w*3]
			if truths[i], err = r.Draw(paint, e.Seed, uint64(at+i), e.Conditions, pixels); err != nil {
				return 0, err
			}
		}

		out, err := p.Predict(images)
		if err != nil {
			return 0, fmt.Errorf("evaluate %s: %w", r.Name(), err)
		}

		for i, t := range truths {
			scores := out["scores"][i*len(out["scores"])/BatchMax : (i+1)*len(out["scores"])/BatchMax]
			if r.Family != "detector" {
				if class, _ := Best(scores); class == t.Class {
					right++
				}
				continue
			}

			// Average precision needs the whole curve, so include detections of very low score.
			boxes := out["boxes"][i*len(out["boxes"])/BatchMax : (i+1)*len(out["boxes"])/BatchMax]
			found, err := Decode(scores, boxes, int(kinds), 0.02, float64(w), float64(h))
			if err != nil {
				return 0, err
			}
			score.addImage(found, t.Objects)
		}
	}

	if r.Family == "detector" {
		return score.meanPrecision(), nil
	}
	return float64(right) / float64(n), nil
}

// precision collects the data for mean average precision.
type precision struct {
	hits  [scene.KindCount][]hit
	count [scene.KindCount]int // objects to be found
}

type hit struct {
	score float32
	right bool
}

// addImage compares one image's detections, best first, with its objects. An object that is not Clear need not be
// found, and finding it is no error.
func (p *precision) addImage(found []Detection, objects []scene.Object) {
	taken := make([]bool, len(objects))

	for _, o := range objects {
		if o.Clear() {
			p.count[o.Kind]++
		}
	}

	// Detections are sorted by score, so each takes the object that it fits best.
	for _, d := range found {
		best, at := 0.5, -1
		for i, o := range objects {
			if iou := d.Box.IoU(o.Box); int(o.Kind) == d.Class && !taken[i] && iou >= best {
				best, at = iou, i
			}
		}

		if at >= 0 {
			taken[at] = true
			if !objects[at].Clear() {
				continue
			}
		}

		// A detection of a hardly visible object counts neither as a hit nor as an error.
		p.hits[d.Class] = append(p.hits[d.Class], hit{d.Score, at >= 0})
	}
}

// meanPrecision returns the area under the monotone precision-recall curve, averaged over the kinds.
func (p *precision) meanPrecision() float64 {
	var sum float64
	n := 0

	for k, hits := range p.hits {
		if p.count[k] == 0 {
			continue
		}
		n++

		slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Compare(b.score, a.score) })

		right := 0
		at := make([]float64, len(hits)) // precision after each detection
		for i, h := range hits {
			if h.right {
				right++
			}
			at[i] = float64(right) / float64(i+1)
		}

		// Make the precision monotone: each point takes the best precision to its right.
		for i := len(at) - 2; i >= 0; i-- {
			at[i] = max(at[i], at[i+1])
		}

		for i, h := range hits {
			if h.right {
				sum += at[i] / float64(p.count[k])
			}
		}
	}

	if n == 0 {
		return 0
	}
	return sum / float64(n)
}
