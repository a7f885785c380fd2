package scene

import (
	"math/rand/v2"
)

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

// lightUp sets the factor by which all colours are multiplied at the end.
func (c *canvas) lightUp(light float64) {
	l := float32(0.16 + 0.84*light)
	night := 1 - float32(light)
	c.ambient = rgb{l * (1 - 0.15*night), l * (1 - 0.05*night), l * (1 + 0.25*night)}
}

// glowing returns a colour that stays bright in the dark.
func (c *canvas) glowing(col rgb) rgb {
	l := max(c.ambient[1], 0.2)
	if c.ambient[1] == 0 {
		return col
	}
	return col.scaleBy(0.35 + 0.65/l)
}

// setFog sets the tint of things at depth y.
func (c *canvas) setFog(s *Scene, y float64) {
	c.tint = nil
	if s.Cond.Fog > 0 {
		w, col := fogAt(s, y), s.sky[1]
		c.tint = func(x rgb) rgb { return x.mixWith(col, w) }
	}
}

func fogAt(s *Scene, y float64) float32 {
	near := min(max((y-s.horizon)/(1-s.horizon), 0), 1)
	return float32(s.Cond.Fog * (0.92 - 0.5*near))
}

// drawStreet paints sky, ground and houses.
func (c *canvas) drawStreet(s *Scene) {
	white := float32(0.6 * s.Cond.Snow)

	// Sky, pavement and road have rows of one colour each.
	for y := range c.h {
		wy := c.view.Y0 + (float64(y)+0.5)/c.scale
		col := s.sky[0].mixWith(s.sky[1], float32(min(max(wy/s.horizon, 0), 1)))
		switch near := (wy - s.horizon) / (1 - s.horizon); {
		case near > 0.93 || near > 0 && near < 0.1:
			col = s.ground.scaleBy(1.35).mixWith(rgb{0.9, 0.9, 0.95}, white)
		case near > 0:
			col = s.ground.mixWith(rgb{0.9, 0.9, 0.95}, white*0.7)
		}

		if s.Cond.Fog > 0 {
			col = col.mixWith(s.sky[1], fogAt(s, wy))
		}

		row := c.pix[y*c.w*3 : (y+1)*c.w*3]
		for i := 0; i < len(row); i += 3 {
			row[i], row[i+1], row[i+2] = col[0], col[1], col[2]
		}
	}

	// The ground owns no pixel.
	clear(c.owner)
	c.setFog(s, s.horizon)

	for _, h := range s.houses {
		c.drawHouse(s, h)
	}
	c.setFog(s, 0.6)

	// The line in the middle of the road.
	mid := s.horizon + 0.5*(1-s.horizon)
	for x := 0.03; x < s.Aspect; x += 0.22 {
		c.paintRect(Rect{x, mid - 0.006, x + 0.11, mid + 0.006}, rgb{0.85, 0.85, 0.8}, 0.8)
	}
	c.tint = nil
}

func (c *canvas) drawHouse(s *Scene, h house) {
	r := h.rect

	// Most crops show little of the street, so skip houses outside the view.
	if r.X1 < c.view.X0 || r.X0 > c.view.X1 || r.Y1 < c.view.Y0 {
		return
	}

	w := r.X1 - r.X0

	if h.isTree {
		g := 0.2 + 0.5*h.col[1]
		green := rgb{g * 0.5, g, g * 0.4}
		x := (r.X0 + r.X1) / 2
		c.paintRect(Rect{x - 0.012, s.horizon - 0.12, x + 0.012, r.Y1}, rgb{0.3, 0.22, 0.15}, 1)
		c.paintEllipse(x, s.horizon-0.14, 0.4*w, 0.09, green, 1)
		c.paintEllipse(x-0.1*w, s.horizon-0.2, 0.3*w, 0.07, green.scaleBy(1.15), 1)
		return
	}

	c.paintRect(r, h.col, 1)
	stepX, stepY := w/float64(h.cols), (r.Y1-r.Y0-0.03)/float64(h.rows)

	for i := range h.rows * h.cols {
		x, y := r.X0+(float64(i%h.cols)+0.25)*stepX, r.Y0+0.02+float64(i/h.cols)*stepY
		col := rgb{0.25, 0.3, 0.36}
		// Light behind a window shows only in the dark.
		if h.lit>>i&1 != 0 && s.Cond.Light < 0.6 {
			col = c.glowing(rgb{0.9, 0.75, 0.4})
		}
		c.paintRect(Rect{x, y, x + 0.5*stepX, y + 0.55*stepY}, col, 1)
	}
}

func (c *canvas) drawBush(b bush) {
	switch b.kind {
	case 0:
		c.paintRect(Rect{b.x - 0.008, b.y - 0.75*b.size, b.x + 0.008, b.y}, b.col, 1)
	case 1:
		c.paintRect(Rect{b.x - 0.04*b.size, b.y - 0.13*b.size, b.x + 0.04*b.size, b.y}, b.col, 1)
		c.paintRect(Rect{b.x - 0.045*b.size, b.y - 0.15*b.size, b.x + 0.045*b.size, b.y - 0.12*b.size}, b.col.scaleBy(0.7), 1)
	default:
		c.paintEllipse(b.x, b.y-0.04*b.size, 0.08*b.size, 0.08*b.size, b.col, 1)
		c.paintEllipse(b.x+0.05*b.size, b.y-0.02*b.size, 0.07*b.size, 0.06*b.size, b.col.scaleBy(0.85), 1)
	}
}

// drawWeather paints rain and snow in front of everything.
func (c *canvas) drawWeather(s *Scene, g *rand.Rand) {
	// Streaks fall to the left, all at one angle.
	for n := int(70 * s.Cond.Rain); n > 0; n-- {
		x, y, l := g.Float64()*s.Aspect, g.Float64(), 0.03+0.05*g.Float64()
		c.paintPolygon([]point{{x, y}, {x + 0.004, y}, {x + 0.004 - 0.2*l, y + l}, {x - 0.2*l, y + l}}, rgb{0.8, 0.84, 0.9}, 0.5)
	}

	for n := int(80 * s.Cond.Snow); n > 0; n-- {
		x, y, r := g.Float64()*s.Aspect, g.Float64(), 0.004+0.005*g.Float64()
		c.paintEllipse(x, y, r, r, rgb{0.97, 0.97, 1}, 0.9)
	}
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
