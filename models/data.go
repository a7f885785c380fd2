package models

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"downbeat.dev/models/scene"
)

// source draws training and test examples of a family.
type source interface {
	// drawSample fills one image (H·W·3 bytes) and, unless it is nil, its training target.
	drawSample(p *Painter, g *rand.Rand, c scene.Conditions, pixels []byte, target []float32) Truth
	labels() []string
	imageSize() (h, w int)
}

// Truth is what an image shows: the class of a crop, or the objects of a street.
type Truth struct {
	Class   int // index of the label
	Objects []scene.Object
}

// Painter owns the buffers for drawing. It is not safe for concurrent use.
type Painter struct {
	r     *scene.Renderer
	small *scene.Image
}

// NewPainter makes a painter.
func NewPainter() *Painter { return &Painter{r: scene.NewRenderer(), small: &scene.Image{}} }

// Seeds of the training and the held-out data of a user's seed; they never coincide.
func trainingSeed(seed uint64) uint64 { return 2 * seed }
func heldOutSeed(seed uint64) uint64  { return 2*seed + 1 }

// cropObject draws an object as a detector would crop it: off centre, at the object's own resolution.
func (p *Painter) cropObject(g *rand.Rand, s *scene.Scene, i int, m *scene.Image) {
	aspect := float64(m.W) / float64(m.H)
	shift := func() float64 { return 0.16 * (g.Float64() - 0.5) }
	view := s.Around(i, aspect, 1.02+0.3*g.Float64(), shift(), shift())

	// Draw half of the crops smaller and scale them up, like those of distant objects.
	sharp := 1.0
	if g.IntN(2) == 0 {
		sharp = 0.4 + 0.6*g.Float64()
	}

	h := max(int(float64(m.H)*sharp), 8)
	w := int(math.Round(float64(h) * aspect))
	if h >= m.H {
		p.r.Draw(s, view, m, nil)
		return
	}

	if n := w * h * 3; cap(p.small.Pix) < n {
		p.small.Pix = make([]byte, n)
	}

	p.small.W, p.small.H, p.small.Pix = w, h, p.small.Pix[:w*h*3]
	p.r.Draw(s, view, p.small, nil)
	m.Resample(p.small, scene.Rect{X1: float64(w), Y1: float64(h)})
}

// drawCrop draws a crop of an object of this kind and activity.
func (p *Painter) drawCrop(g *rand.Rand, c scene.Conditions, k scene.Kind, a scene.Activity, pixels []byte, h, w int) {
	s, i := scene.ComposeOne(g, c, k, a)
	p.cropObject(g, s, i, &scene.Image{W: w, H: h, Pix: pixels})
}

func oneHot(target []float32, class int) {
	if target != nil {
		clear(target)
		target[class] = 1
	}
}

// Draw fills pixels (Height·Width·3 bytes) with image i of seed's held-out set, under the given conditions, or under
// mixed ones if c is nil. Load generators use it: the model never saw these images.
func (r Recipe) Draw(p *Painter, seed, i uint64, c *scene.Conditions, pixels []byte) (Truth, error) {
	if h, w := r.Size(); len(pixels) != h*w*3 {
		return Truth{}, fmt.Errorf("draw for %s: %d bytes: want %d", r.Name(), len(pixels), h*w*3)
	}

	g := scene.Seeded(heldOutSeed(seed), i)

	// Draw the conditions from the image's own generator, so that image i is always the same.
	if c == nil {
		mixed := scene.Mixed(g)
		c = &mixed
	}
	return r.data.drawSample(p, g, *c, pixels, nil), nil
}

// drawClass draws a crop's class by weight. If all classes are equally frequent it draws one number, as it did before
// there were weights: the images that the models in the tree were trained on stay the same.
func drawClass(g *rand.Rand, weights []float64) int {
	if slices.Min(weights) == slices.Max(weights) {
		return g.IntN(len(weights))
	}
	return scene.DrawWeighted(g, weights)
}

type vehicleCrops struct{}

func (vehicleCrops) imageSize() (h, w int) { return vehicleHeight, vehicleWidth }

func (vehicleCrops) labels() []string {
	var l []string
	for i := range scene.VehicleClasses {
		l = append(l, scene.Vehicle(i).String())
	}
	return l
}

func (v vehicleCrops) drawSample(p *Painter, g *rand.Rand, c scene.Conditions, pixels []byte, target []float32) Truth {
	class := drawClass(g, c.Kinds[scene.Vehicle(0):])
	p.drawCrop(g, c, scene.Vehicle(class), scene.Cycling, pixels, vehicleHeight, vehicleWidth)
	oneHot(target, class)
	return Truth{Class: class}
}

type activityCrops struct{}

func (activityCrops) imageSize() (h, w int) { return activityHeight, activityWidth }

func (activityCrops) labels() []string {
	var l []string
	for a := range scene.ActivityCount {
		l = append(l, a.String())
	}
	return l
}

func (activityCrops) drawSample(p *Painter, g *rand.Rand, c scene.Conditions, pixels []byte, target []float32) Truth {
	a := scene.Activity(drawClass(g, c.Activities[:]))
	kind := scene.Person

	// Cycling is the activity of a bicycle's rider, not of a walker.
	if a == scene.Cycling {
		kind = scene.Bicycle
	}

	p.drawCrop(g, c, kind, a, pixels, activityHeight, activityWidth)
	oneHot(target, int(a))
	return Truth{Class: int(a)}
}

type streets struct{}

func (streets) imageSize() (h, w int) { return detectorSize, detectorSize }

func (streets) labels() []string {
	var l []string
	for k := range scene.KindCount {
		l = append(l, k.String())
	}
	return l
}

func (streets) drawSample(p *Painter, g *rand.Rand, c scene.Conditions, pixels []byte, target []float32) Truth {
	s := scene.Compose(g, c, 1)
	m := &scene.Image{W: detectorSize, H: detectorSize, Pix: pixels}
	objects := p.r.Draw(s, s.Full(), m, nil)
	if target != nil {
		gridTarget(objects, target)
	}
	return Truth{Objects: objects}
}

// gridTarget writes train.Grid's target. If two objects have their centres in one cell, the nearer one counts. A cell
// whose object is hardly visible does not count.
func gridTarget(objects []scene.Object, target []float32) {
	const plane = cells * cells
	clear(target)

	// A cell without an object counts as background, with full weight.
	weight := target[(5+kinds)*plane:]
	for i := range weight {
		weight[i] = 1
	}

	for _, o := range objects {
		b := o.Box
		cx, cy := (b.X0+b.X1)/2/cellSize, (b.Y0+b.Y1)/2/cellSize
		x, y := min(int(cx), cells-1), min(int(cy), cells-1)
		i := y*cells + x

		// A hardly visible object is neither an object nor background, so its cell does not count.
		if !o.Clear() {
			if target[i] == 0 {
				weight[i] = 0
			}
			continue
		}

		// A later, nearer object replaces an earlier one in its cell.
		for k := range kinds {
			target[int(1+k)*plane+i] = 0
		}
		target[i], weight[i] = 1, 1
		target[(1+int(o.Kind))*plane+i] = 1

		box := target[int(1+kinds)*plane:]
		box[i] = float32(cx) - float32(x)
		box[plane+i] = float32(cy) - float32(y)
		box[2*plane+i] = float32(math.Log(max(b.X1-b.X0, 1) / detectorSize))
		box[3*plane+i] = float32(math.Log(max(b.Y1-b.Y0, 1) / detectorSize))
	}
}
