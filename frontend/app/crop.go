package app

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	graph "downbeat.dev/core/app"
	"downbeat.dev/core/model"
)

// cropper is the hook "crop": it finds the objects in a detector's answer and cuts each out of the image.
//
//	image   UINT8 [H, W, 3]        inputs
//	scores  FP32 [cells, classes]
//	boxes   FP32 [cells, 4]        x0 y0 x1 y1, as shares of the image
//	NAME    UINT8 [h, w, 3], list  output: objects of the classes in the setting NAME, best first, scaled to h×w
//	NAME_boxes  FP32 [5], list     optional output: their boxes in pixels, and their scores
//
// The setting threshold is the lowest score of an object, by default 0.5. A box is dropped if its intersection over union
// with a better one of its class exceeds 0.5 (non-maximum suppression). A full list keeps the best objects.
type cropper struct {
	image, scores, boxes int // inputs
	high, wide, classes  int
	threshold            float32
	groups               []cropGroup
}

// cropGroup is one list of crops.
type cropGroup struct {
	classes    []bool
	crops      int // outputs
	boxes      int // or Single
	high, wide int
	most       int
}

// cropMargin is the size of a crop relative to its box: boxes are tight, and classifiers were trained with some
// background around their object.
const cropMargin = 1.15

func newCrop(s *Step) (Hook, error) {
	c := &cropper{threshold: 0.5}
	for port, at := range map[string]*int{"image": &c.image, "scores": &c.scores, "boxes": &c.boxes} {
		*at = slices.IndexFunc(s.Inputs, func(t model.Tensor) bool { return t.Name == port })
		if *at < 0 || len(s.Inputs) != 3 {
			return nil, errors.New("inputs: want image, scores and boxes")
		}
	}

	image, scores, boxes := &s.Inputs[c.image], &s.Inputs[c.scores], &s.Inputs[c.boxes]
	switch {
	case !isPicture(image):
		return nil, fmt.Errorf("image: %s %v: want UINT8 [H W 3]", image.Datatype, image.Shape)
	case scores.Datatype != model.FP32 || len(scores.Shape) != 2:
		return nil, fmt.Errorf("scores: %s %v: want FP32 [cells classes]", scores.Datatype, scores.Shape)
	case boxes.Datatype != model.FP32 || !slices.Equal(boxes.Shape, []int64{scores.Shape[0], 4}):
		return nil, fmt.Errorf("boxes: %s %v: want FP32 [%d 4]", boxes.Datatype, boxes.Shape, scores.Shape[0])
	}
	c.high, c.wide, c.classes = int(image.Shape[0]), int(image.Shape[1]), int(scores.Shape[1])

	if text, ok := s.With["threshold"]; ok {
		x, err := strconv.ParseFloat(text, 32)
		if err != nil || !(x >= 0 && x <= 1) {
			return nil, fmt.Errorf("threshold: %q: want 0 to 1", text)
		}
		c.threshold = float32(x)
	}
	return c.cut, c.readGroups(s)
}

// readGroups matches the outputs with the settings.
func (c *cropper) readGroups(s *Step) error {
	for i := range s.Outputs {
		t := &s.Outputs[i]
		if boxesOf, ok := strings.CutSuffix(t.Name, "_boxes"); ok && s.With[boxesOf] != "" {
			continue // handled below, with its crops
		}
		g := cropGroup{classes: make([]bool, c.classes), crops: i, boxes: graph.Single, most: t.Most}
		if s.With[t.Name] == "" {
			return fmt.Errorf("output %q: want a setting of this name that lists its classes", t.Name)
		}

		// The setting lists classes by their index in the detector's scores.
		if !isPicture(&t.TensorInfo) || t.Most == 0 {
			return fmt.Errorf("output %q: %s %v: want a list of UINT8 [h w 3]", t.Name, t.Datatype, t.Shape)
		}
		for _, word := range strings.Fields(s.With[t.Name]) {
			k, err := strconv.Atoi(word)
			if err != nil || k < 0 || k >= c.classes {
				return fmt.Errorf("setting %q: class %q: want 0 to %d", t.Name, word, c.classes-1)
			}
			g.classes[k] = true
		}
		g.high, g.wide = int(t.Shape[0]), int(t.Shape[1])

		// Boxes correspond to crops, element by element.
		g.boxes = slices.IndexFunc(s.Outputs, func(o OutputInfo) bool { return o.Name == t.Name+"_boxes" })
		if g.boxes >= 0 {
			o := &s.Outputs[g.boxes]
			if o.Datatype != model.FP32 || !slices.Equal(o.Shape, []int64{5}) || o.Most != t.Most {
				return fmt.Errorf("output %q: %s %v, most %d: want FP32 [5], most %d", o.Name, o.Datatype, o.Shape, o.Most, t.Most)
			}
		}
		c.groups = append(c.groups, g)
	}

	// Refuse unknown settings, so that a misspelt name is not ignored.
	for name := range s.With {
		if name != "threshold" && !slices.ContainsFunc(s.Outputs, func(t OutputInfo) bool { return t.Name == name }) {
			return fmt.Errorf("setting %q: want threshold, or an output's name", name)
		}
	}
	return nil
}

func isPicture(t *model.Tensor) bool {
	return t.Datatype == model.Uint8 && len(t.Shape) == 3 && t.Shape[2] == 3
}

// object is one detection, in pixels.
type object struct {
	class          int
	score          float32
	x0, y0, x1, y1 float64
}

// cut is the Hook.
func (c *cropper) cut(_ context.Context, call *Call) error {
	image := call.In[c.image][0]
	found := c.findObjects(call.In[c.scores][0], call.In[c.boxes][0])

	// Objects come best first, so a full list holds the best.
	for k := range c.groups {
		g := &c.groups[k]
		for i := range found {
			o := &found[i]
			if !g.classes[o.class] || len(call.Out[g.crops]) == g.most {
				continue
			}

			call.Out[g.crops] = append(call.Out[g.crops], c.crop(image, o, g.high, g.wide))
			if g.boxes >= 0 {
				var b []byte
				for _, x := range []float64{o.x0, o.y0, o.x1, o.y1, float64(o.score)} {
					b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
				}
				call.Out[g.boxes] = append(call.Out[g.boxes], b)
			}
		}
	}
	return nil
}

// findObjects returns the objects, best first.
func (c *cropper) findObjects(scores, boxes []byte) []object {
	at := func(b []byte, i int) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])) }
	share := func(x float32) float64 { return min(max(float64(x), 0), 1) }
	var all []object
	for i := range len(scores) / 4 {
		score := at(scores, i)

		// The condition is also true for NaN, which is no object.
		if !(score >= c.threshold) {
			continue
		}
		cell := 4 * (i / c.classes)
		o := object{class: i % c.classes, score: score, x0: share(at(boxes, cell)) * float64(c.wide), y0: share(at(boxes, cell+1)) * float64(c.high),
			x1: share(at(boxes, cell+2)) * float64(c.wide), y1: share(at(boxes, cell+3)) * float64(c.high)}

		// Skip boxes of less than a pixel.
		if o.x1-o.x0 >= 1 && o.y1-o.y0 >= 1 {
			all = append(all, o)
		}
	}

	// Non-maximum suppression: the best detection of an object suppresses those that overlap it.
	slices.SortStableFunc(all, func(a, b object) int { return cmp.Compare(b.score, a.score) })
	kept := all[:0]
	for _, o := range all {
		if !slices.ContainsFunc(kept, func(k object) bool { return k.class == o.class && k.overlap(&o) > 0.5 }) {
			kept = append(kept, o)
		}
	}
	return kept
}

// overlap returns the intersection over union of two boxes.
func (o *object) overlap(p *object) float64 {
	w, h := min(o.x1, p.x1)-max(o.x0, p.x0), min(o.y1, p.y1)-max(o.y0, p.y0)

	// Two negative sides would give a positive area.
	if w <= 0 || h <= 0 {
		return 0
	}
	both := w * h
	return both / ((o.x1-o.x0)*(o.y1-o.y0) + (p.x1-p.x0)*(p.y1-p.y0) - both)
}

// crop scales the surroundings of an object to h×w and keeps their aspect ratio.
func (c *cropper) crop(image []byte, o *object, h, w int) []byte {
	aspect := float64(w) / float64(h)

	// The longer side relative to the aspect ratio determines the scale, so that the whole object is in the crop.
	high := cropMargin * max(o.y1-o.y0, (o.x1-o.x0)/aspect)
	left, top := (o.x0+o.x1)/2-high*aspect/2, (o.y0+o.y1)/2-high/2

	// Each output pixel is the mean of at least one bilinear sample, and of as many as it covers image pixels.
	step := high / float64(h)
	samples := max(1, int(math.Round(step)))
	out := make([]byte, h*w*3)
	for y := range h {
		for x := range w {
			var sum [3]float64
			for sy := range samples {
				for sx := range samples {
					c.addColour(image, left+(float64(x)+(float64(sx)+0.5)/float64(samples))*step, top+(float64(y)+(float64(sy)+0.5)/float64(samples))*step, &sum)
				}
			}
			for k := range sum {
				out[(y*w+x)*3+k] = byte(sum[k]/float64(samples*samples) + 0.5)
			}
		}
	}
	return out
}

// addColour adds the bilinear colour at a point. Beyond the border it uses the border's colour.
func (c *cropper) addColour(image []byte, x, y float64, sum *[3]float64) {
	// A pixel's colour applies at its centre, half a pixel from its corner.
	x, y = min(max(x-0.5, 0), float64(c.wide-1)), min(max(y-0.5, 0), float64(c.high-1))
	x0, y0 := int(x), int(y)
	x1, y1 := min(x0+1, c.wide-1), min(y0+1, c.high-1)
	fx, fy := x-float64(x0), y-float64(y0)
	for k := range sum {
		at := func(x, y int) float64 { return float64(image[(y*c.wide+x)*3+k]) }
		sum[k] += (at(x0, y0)*(1-fx)+at(x1, y0)*fx)*(1-fy) + (at(x0, y1)*(1-fx)+at(x1, y1)*fx)*fy
	}
}
