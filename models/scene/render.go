package scene

import "math/rand/v2"

// Object is the truth about one object in an image.
type Object struct {
	Kind     Kind
	Activity Activity // of a Person or a Bicycle's rider
	Box      Rect     // clipped to the image, in its pixels (of Scene.Objects: street coordinates, unclipped)
	Visible  float64  // share of its pixels that nothing covers
	Inside   float64  // share of its box that lies within the image
}

// Clear reports whether enough is visible for the object to count as findable.
func (o Object) Clear() bool { return o.Visible*o.Inside >= 0.45 }

// Renderer draws scenes with its own buffers. It is not safe for concurrent use.
type Renderer struct {
	c     canvas
	noise [4096]float32 // of standard deviation 1
	own   []int         // per item: pixels when just drawn
}

// NewRenderer makes a renderer.
func NewRenderer() *Renderer {
	r := &Renderer{}
	g := rand.New(rand.NewPCG(1, 2))
	for i := range r.noise {
		r.noise[i] = float32(g.NormFloat64())
	}
	return r
}

// Full returns the view of the whole street.
func (s *Scene) Full() Rect { return Rect{0, 0, s.Aspect, 1} }

// Draw paints the part of s within view, whose aspect must be that of dst. It appends the objects in it to truth, far
// to near.
func (r *Renderer) Draw(s *Scene, view Rect, dst *Image, truth []Object) []Object {
	c := &r.c
	c.w, c.h, c.view = dst.W, dst.H, view
	c.scale = float64(dst.H) / (view.Y1 - view.Y0)

	// Buffers grow to the largest image that was drawn.
	if n := dst.W * dst.H; cap(c.owner) < n {
		c.pix, c.owner = make([]float32, 3*n), make([]uint8, n)
	} else {
		c.pix, c.owner = c.pix[:3*n], c.owner[:n]
	}

	c.lightUp(s.Cond.Light)
	c.beginObject(0)
	c.drawStreet(s)

	// Draw far items first. The pixels that an item owns now are its size; those that it owns at the end are its
	// visible part.
	r.own = r.own[:0]
	for i := range s.items {
		it := &s.items[i]
		c.setFog(s, it.place.y)
		c.beginObject(uint8(i + 1))
		c.drawItem(it)
		r.own = append(r.own, c.countOwned(it.box, uint8(i+1)))
	}

	// Foreground obstacles are no objects, but take pixels from the objects behind them.
	c.tint = nil
	c.beginObject(255)
	for _, b := range s.front {
		c.drawBush(b)
	}

	truth = r.listTruth(s, truth)

	// Weather hides pixels, but not objects, so it is drawn after the truth is known.
	c.beginObject(0)
	g := rand.New(rand.NewPCG(s.seed, 7))
	c.drawWeather(s, g)
	r.developImage(s, g, dst)
	return truth
}

// listTruth lists the truth about every item after everything is drawn.
func (r *Renderer) listTruth(s *Scene, out []Object) []Object {
	c := &r.c
	for i := range s.items {
		it := &s.items[i]
		b := it.box.clipTo(c.view)

		// An object that painted no pixel, with nothing in front of it, is not in the image.
		if r.own[i] == 0 || b.area() == 0 {
			continue
		}

		toPixels := func(x, from float64, limit int) float64 {
			return min(max((x-from)*c.scale, 0), float64(limit))
		}

		out = append(out, Object{
			Kind: it.kind, Activity: it.activity,
			Box: Rect{toPixels(b.X0, c.view.X0, c.w), toPixels(b.Y0, c.view.Y0, c.h),
				toPixels(b.X1, c.view.X0, c.w), toPixels(b.Y1, c.view.Y0, c.h)},
			Visible: float64(c.countOwned(it.box, uint8(i+1))) / float64(r.own[i]),
			Inside:  b.area() / it.box.area(),
		})
	}
	return out
}

// drawItem draws one object.
func (c *canvas) drawItem(it *item) {
	c.drawShadow(it)
	if it.kind == Person {
		c.drawPerson(it.place, it.activity, it.look)
	} else {
		c.drawVehicle(it.place, it.kind, it.look)
	}
}

// drawShadow darkens the ground below an object. The shadow belongs to no object and does not widen the box.
func (c *canvas) drawShadow(it *item) {
	if c.w == 0 {
		return
	}

	// Paint as nobody, and return to the object afterwards.
	id, extent := c.id, c.extent
	c.id = 0
	half := (it.box.X1 - it.box.X0) / 2
	c.paintEllipse((it.box.X0+it.box.X1)/2, it.place.y, half, 0.12*it.place.metre, rgb{0.05, 0.05, 0.06}, 0.35)

	c.id, c.extent = id, extent
}

// countOwned counts the pixels within box that id painted last.
func (c *canvas) countOwned(box Rect, id uint8) int {
	x0, y0, x1, y1 := c.pixelRange(box)
	n := 0
	for y := y0; y < y1 && x0 < x1; y++ {
		for _, o := range c.owner[y*c.w+x0 : y*c.w+x1] {
			if o == id {
				n++
			}
		}
	}
	return n
}

// developImage applies light and sensor noise, and rounds to bytes.
func (r *Renderer) developImage(s *Scene, g *rand.Rand, dst *Image) {
	c := &r.c
	sigma := float32(s.Cond.Noise * 255)

	// Draw the noise once per renderer and read it from random places: drawing it per pixel would take most of the
	// time.
	k := g.IntN(len(r.noise))
	for i, n := 0, len(c.pix); i < n; i += 3 {
		for j := range 3 {
			v := c.pix[i+j]*c.ambient[j]*255 + sigma*r.noise[k] + 0.5
			if k++; k == len(r.noise) {
				k = g.IntN(len(r.noise))
			}
			dst.Pix[i+j] = byte(min(max(v, 0), 255))
		}
	}
}
