package scene

import "math/rand/v2"

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

// fogAt returns the weight of the fog at depth y: far things are hidden most.
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

		// Below the horizon, pavement lies along both edges of the road; snow whitens the road less.
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

// drawHouse paints a house with its windows, or a tree in its place.
func (c *canvas) drawHouse(s *Scene, h house) {
	r := h.rect

	// Most crops show little of the street, so skip houses outside the view.
	if r.X1 < c.view.X0 || r.X0 > c.view.X1 || r.Y1 < c.view.Y0 {
		return
	}

	if h.isTree {
		c.drawTree(s, h)
		return
	}

	c.paintRect(r, h.col, 1)
	stepX, stepY := (r.X1-r.X0)/float64(h.cols), (r.Y1-r.Y0-0.03)/float64(h.rows)
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

// drawTree paints a trunk and two crowns.
func (c *canvas) drawTree(s *Scene, h house) {
	w, x := h.rect.X1-h.rect.X0, (h.rect.X0+h.rect.X1)/2
	g := 0.2 + 0.5*h.col[1]
	green := rgb{g * 0.5, g, g * 0.4}

	c.paintRect(Rect{x - 0.012, s.horizon - 0.12, x + 0.012, h.rect.Y1}, rgb{0.3, 0.22, 0.15}, 1)
	c.paintEllipse(x, s.horizon-0.14, 0.4*w, 0.09, green, 1)
	c.paintEllipse(x-0.1*w, s.horizon-0.2, 0.3*w, 0.07, green.scaleBy(1.15), 1)
}

// drawBush paints an obstacle in front of the street: a post, a box or a bush.
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

	// Flakes are round and of several sizes.
	for n := int(80 * s.Cond.Snow); n > 0; n-- {
		x, y, r := g.Float64()*s.Aspect, g.Float64(), 0.004+0.005*g.Float64()
		c.paintEllipse(x, y, r, r, rgb{0.97, 0.97, 1}, 0.9)
	}
}
